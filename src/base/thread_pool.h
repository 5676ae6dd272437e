// A fixed team of pinned threads that runs one parallel loop at a time.
//
// Invariant: run() returns only when every index has been done and its effects are visible to the
// caller; which worker did which index never influences a result (kernels write disjoint outputs
// and reduce in index order), so any thread count gives the same bits. Workers spin for a short,
// bounded time between loops and then sleep, so that a loop costs a fraction of a microsecond and
// an idle process costs nothing. Workers are pinned; a caller that stands on a worker's CPU is
// moved off it, its affinity left as it was. No allocation after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace moray {

class ThreadPool {
 public:
  // `thread_count` >= 1, the caller included; 0 picks one a physical core this process may use,
  // no more than the container grants.
  explicit ThreadPool(int thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return thread_count_; }

  // Calls body(index, worker) once for each index in [0, count), worker in [0, thread_count).
  // Each thread starts on its own stretch of neighbouring indices, the same one for the same count,
  // and then helps the others. Not re-entrant; one caller at a time.
  template <typename Body>
  void run(int64_t count, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(
        count,
        [](void* context, int64_t index, int worker) {
          (*static_cast<Plain*>(context))(index, worker);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Invoke = void (*)(void* context, int64_t index, int worker);
  void run_erased(int64_t count, Invoke invoke, void* context);

  struct Team;
  int thread_count_;
  std::unique_ptr<Team> team_;
};

}  // namespace moray
