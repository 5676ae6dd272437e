// The team behind ThreadPool. One 64-bit word, `ticket`, carries a loop: its upper half counts
// loops, its lower half the indices not yet claimed. A thread reads the loop's fields, then claims
// indices by compare-and-swap; success proves that the fields belonged to that very loop, because
// a loop cannot end while an index is unclaimed. So late wakers never run a stale loop, and the
// caller need not wait for threads that are still asleep.
#include "src/base/thread_pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "src/base/check.h"

namespace moray {

namespace {

// Longer than the gap between two loops of a decode step (a sampled token included), short enough
// that an idle engine is asleep before anyone could measure it.
constexpr auto kSpinTime = std::chrono::microseconds(50);
// A thread claims this share of what is left, for each of the team: large claims first, single
// indices last, since every claim moves a cache line between cores.
constexpr int64_t kClaimsLeft = 1;
constexpr uint64_t kIndexMask = 0xffffffffu;

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// The allowed CPUs with the first hyperthread of each core before every second one; `cores` gets
// the number of distinct cores.
std::vector<int> cpus_by_core(size_t* cores) {
  std::set<std::string> seen;
  std::vector<int> first, rest;
  for (int cpu : allowed_cpus()) {
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                       "/topology/thread_siblings_list");
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
    (seen.insert(siblings).second ? first : rest).push_back(cpu);
  }
  *cores = first.size();
  first.insert(first.end(), rest.begin(), rest.end());
  return first;
}

// CPUs' worth of time a container grants (control group v2), rounded up; `most` if it sets no
// limit.
size_t granted_cpus(size_t most) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // "quota period" in microseconds, or "max period"
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return most;
  return std::min(most, static_cast<size_t>(std::ceil(quota / period)));
}

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // Failure only costs speed: a container may forbid it.
  (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

}  // namespace

struct ThreadPool::Team {
  alignas(64) std::atomic<uint64_t> ticket{0};
  alignas(64) std::atomic<int64_t> done{0};
  alignas(64) std::atomic<int> wakes{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  // The loop's fields; atomics because a late thread may read them while the next loop is written.
  alignas(64) std::atomic<Invoke> invoke{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<int64_t> count{0};
  bool may_spin = true;
  int64_t claim_divisor = 1;
  std::vector<std::thread> threads;

  // Runs indices of the current loop until none is left.
  void work(int worker) {
    int64_t finished = 0;
    uint64_t seen = ticket.load(std::memory_order_acquire);
    while ((seen & kIndexMask) != 0) {
      const Invoke call = invoke.load(std::memory_order_relaxed);
      void* const argument = context.load(std::memory_order_relaxed);
      const int64_t total = count.load(std::memory_order_relaxed);
      const auto left = static_cast<int64_t>(seen & kIndexMask);
      const int64_t claim = std::max<int64_t>(1, left / claim_divisor);
      if (!ticket.compare_exchange_weak(seen, seen - static_cast<uint64_t>(claim),
                                        std::memory_order_acq_rel, std::memory_order_acquire)) {
        continue;
      }
      for (int64_t i = 0; i < claim; ++i) call(argument, total - left + i, worker);
      finished += claim;
      seen = ticket.load(std::memory_order_acquire);
    }
    if (finished != 0) done.fetch_add(finished, std::memory_order_release);
  }

  bool has_work() const { return (ticket.load(std::memory_order_acquire) & kIndexMask) != 0; }

  // Polls for work for kSpinTime; false if none came.
  bool spin() const {
    if (!may_spin) return has_work();
    const auto end = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < 64; ++i) {
        if (has_work() || stop.load(std::memory_order_relaxed)) return true;
        _mm_pause();
      }
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }

  // The announcement in `sleepers` and the last look at the ticket are sequentially consistent, as
  // are the caller's store of the ticket and its look at `sleepers`: one of the two sees the other.
  void sleep() {
    const int before = wakes.load(std::memory_order_acquire);
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    const bool idle = (ticket.load(std::memory_order_seq_cst) & kIndexMask) == 0 &&
                      !stop.load(std::memory_order_seq_cst);
    if (idle) wakes.wait(before, std::memory_order_acquire);
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

  void wake() {
    if (sleepers.load(std::memory_order_seq_cst) == 0) return;
    wakes.fetch_add(1, std::memory_order_release);
    wakes.notify_all();
  }

  void serve(int worker, int cpu) {
    if (cpu >= 0) pin_to(cpu);
    while (!stop.load(std::memory_order_acquire)) {
      if (spin()) {
        work(worker);
      } else {
        sleep();
      }
    }
  }
};

ThreadPool::ThreadPool(int thread_count) : team_(std::make_unique<Team>()) {
  CHECK(thread_count >= 0, thread_count);
  size_t cores = 1;
  const std::vector<int> cpus = cpus_by_core(&cores);
  const size_t default_count = std::max<size_t>(1, granted_cpus(cores));
  thread_count_ = thread_count > 0 ? thread_count : static_cast<int>(default_count);
  const auto team_size = static_cast<size_t>(thread_count_);
  team_->may_spin = team_size <= cpus.size();
  team_->claim_divisor = kClaimsLeft * thread_count_;
  for (size_t worker = 1; worker < team_size; ++worker) {
    const int cpu = worker < cpus.size() ? cpus[worker] : -1;
    team_->threads.emplace_back(
        [this, worker, cpu] { team_->serve(static_cast<int>(worker), cpu); });
  }
}

ThreadPool::~ThreadPool() {
  team_->stop.store(true, std::memory_order_seq_cst);
  team_->wake();
  for (std::thread& thread : team_->threads) thread.join();
}

void ThreadPool::run_erased(int64_t count, Invoke invoke, void* context) {
  CHECK(count >= 0 && count <= int64_t{kIndexMask}, count);
  if (count <= 1 || thread_count_ == 1) {
    for (int64_t index = 0; index < count; ++index) invoke(context, index, 0);
    return;
  }
  Team& team = *team_;
  team.invoke.store(invoke, std::memory_order_relaxed);
  team.context.store(context, std::memory_order_relaxed);
  team.count.store(count, std::memory_order_relaxed);
  team.done.store(0, std::memory_order_relaxed);
  const uint64_t loop = (team.ticket.load(std::memory_order_relaxed) >> 32) + 1;
  team.ticket.store(loop << 32 | static_cast<uint64_t>(count), std::memory_order_seq_cst);
  team.wake();
  team.work(0);
  for (int polls = 0; team.done.load(std::memory_order_acquire) != count; ++polls) {
    // A worker may have lost its CPU in the middle of an index; then let it have this one.
    if (polls < 2000 && team.may_spin) {
      _mm_pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace moray
