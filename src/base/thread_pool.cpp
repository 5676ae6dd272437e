// The team behind ThreadPool: every thread owns a share of the loop's indices and, when that is
// done, takes half of what another one has left.
//
// A share is one 64-bit word on a cache line of its own: number of the loop, first and last index
// left. A thread reads a share, then the loop's fields, then claims indices by compare-and-swap;
// success proves that the fields belonged to that very loop, because a loop cannot end while an
// index is unclaimed. So late wakers never run a stale loop, and the caller need not wait for
// threads that are still asleep: it takes their shares. In the usual case a share is touched by its
// owner alone, and a loop costs the two transfers of a cache line that tell a worker to begin and
// the caller that it is done.
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
// A caller found on a worker's CPU is moved at most so often.
constexpr auto kMoveInterval = std::chrono::milliseconds(1);

// Indices of a loop are claimed in units of `grain`, so that a share's bounds fit 16 bits each.
constexpr int64_t kMostUnits = 0xffff;

struct Range {
  uint32_t loop;
  uint32_t begin, end;  // units

  static Range unpack(uint64_t word) {
    return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word >> 16 & 0xffff),
            static_cast<uint32_t>(word & 0xffff)};
  }
  uint64_t pack() const { return uint64_t{loop} << 32 | uint64_t{begin} << 16 | end; }
  bool empty() const { return begin >= end; }
};

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
  struct alignas(64) Share {
    std::atomic<uint64_t> range{0};
  };
  std::vector<Share> shares;
  alignas(64) std::atomic<int64_t> done{0};  // units that workers have finished
  // The loop's fields; atomics because a late thread may read them while the next loop is written.
  alignas(64) std::atomic<Invoke> invoke{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> grain{1};
  alignas(64) std::atomic<int> wakes{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  bool may_spin = true;
  uint32_t loop = 0;      // the caller's
  cpu_set_t worker_cpus;  // where workers are pinned
  std::chrono::steady_clock::time_point next_move{};
  std::vector<std::thread> threads;

  explicit Team(size_t size) : shares(size) { CPU_ZERO(&worker_cpus); }

  // Claims units of `share`, the first one or the last half, and runs them; how many, 0 if none
  // was left.
  int64_t claim_and_run(Share& share, bool is_own, int worker) {
    uint64_t seen = share.range.load(std::memory_order_acquire);
    for (;;) {
      const Range range = Range::unpack(seen);
      if (range.empty()) return 0;
      const Invoke call = invoke.load(std::memory_order_relaxed);
      void* const argument = context.load(std::memory_order_relaxed);
      const int64_t total = count.load(std::memory_order_relaxed);
      const int64_t unit = grain.load(std::memory_order_relaxed);
      Range rest = range, taken = range;
      if (is_own) {
        rest.begin = taken.end = range.begin + 1;
      } else {
        rest.end = taken.begin = range.begin + (range.end - range.begin) / 2;
      }
      if (!share.range.compare_exchange_weak(seen, rest.pack(), std::memory_order_acq_rel,
                                             std::memory_order_acquire)) {
        continue;
      }
      const int64_t end = std::min(total, taken.end * unit);
      for (int64_t i = taken.begin * unit; i < end; ++i) call(argument, i, worker);
      return taken.end - taken.begin;
    }
  }

  // Runs this thread's share of the current loop, then what others have left; how many units.
  int64_t work(int worker) {
    int64_t finished = 0;
    const auto size = static_cast<int>(shares.size());
    for (int i = 0; i < size; ++i) {
      Share& share = shares[static_cast<size_t>((worker + i) % size)];
      while (const int64_t units = claim_and_run(share, i == 0, worker)) finished += units;
    }
    return finished;
  }

  bool has_work(int worker) const {
    const auto& range = shares[static_cast<size_t>(worker)].range;
    return !Range::unpack(range.load(std::memory_order_acquire)).empty();
  }

  // Polls for work for kSpinTime; false if none came.
  bool spin(int worker) const {
    if (!may_spin) return has_work(worker);
    const auto end = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < 64; ++i) {
        if (has_work(worker) || stop.load(std::memory_order_relaxed)) return true;
        _mm_pause();
      }
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }

  // A worker announces itself in `sleepers` and then looks at its share; the caller fills the
  // shares and then looks at `sleepers`. Both are additions to one variable, so the later one sees
  // what the earlier one's thread had done.
  void sleep(int worker) {
    const int before = wakes.load(std::memory_order_acquire);
    sleepers.fetch_add(1, std::memory_order_acq_rel);
    const bool idle = !has_work(worker) && !stop.load(std::memory_order_acquire);
    if (idle) wakes.wait(before, std::memory_order_acquire);
    sleepers.fetch_sub(1, std::memory_order_acq_rel);
  }

  void wake() {
    if (sleepers.fetch_add(0, std::memory_order_acq_rel) == 0) return;
    wakes.fetch_add(1, std::memory_order_release);
    wakes.notify_all();
  }

  void serve(int worker, int cpu) {
    if (cpu >= 0) pin_to(cpu);
    while (!stop.load(std::memory_order_acquire)) {
      if (!spin(worker)) {
        sleep(worker);
      } else if (const int64_t finished = work(worker)) {
        done.fetch_add(finished, std::memory_order_release);
      }
    }
  }

  // Moves the caller off a worker's CPU: the two would take turns, at half the speed. Its affinity
  // is the user's, so it is narrowed for a moment only, to make the kernel choose another CPU.
  void leave_worker_cpus() {
    const int cpu = sched_getcpu();
    if (!may_spin || cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &worker_cpus)) return;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_move) return;
    next_move = now + kMoveInterval;
    cpu_set_t allowed, free;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
    CPU_ZERO(&free);
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &allowed) && !CPU_ISSET(i, &worker_cpus)) CPU_SET(i, &free);
    }
    if (CPU_COUNT(&free) == 0 || sched_setaffinity(0, sizeof(free), &free) != 0) return;
    (void)sched_setaffinity(0, sizeof(allowed), &allowed);
  }

  // Hands `units` out in equal shares, neighbouring units to one thread.
  void publish(int64_t units) {
    ++loop;
    const auto size = static_cast<int64_t>(shares.size());
    for (int64_t i = size - 1; i >= 0; --i) {  // the caller's own last
      const Range range{loop, static_cast<uint32_t>(units * i / size),
                        static_cast<uint32_t>(units * (i + 1) / size)};
      shares[static_cast<size_t>(i)].range.store(range.pack(), std::memory_order_release);
    }
    wake();
  }
};

ThreadPool::ThreadPool(int thread_count) {
  CHECK(thread_count >= 0, thread_count);
  size_t cores = 1;
  const std::vector<int> cpus = cpus_by_core(&cores);
  const size_t default_count = std::max<size_t>(1, granted_cpus(cores));
  thread_count_ = thread_count > 0 ? thread_count : static_cast<int>(default_count);
  const auto team_size = static_cast<size_t>(thread_count_);
  team_ = std::make_unique<Team>(team_size);
  team_->may_spin = team_size <= cpus.size();
  for (size_t worker = 1; worker < std::min(team_size, cpus.size()); ++worker) {
    if (cpus[worker] < CPU_SETSIZE) CPU_SET(cpus[worker], &team_->worker_cpus);
  }
  for (size_t worker = 1; worker < team_size; ++worker) {
    const int cpu = worker < cpus.size() ? cpus[worker] : -1;
    team_->threads.emplace_back(
        [this, worker, cpu] { team_->serve(static_cast<int>(worker), cpu); });
  }
}

ThreadPool::~ThreadPool() {
  team_->stop.store(true, std::memory_order_release);
  team_->wake();
  for (std::thread& thread : team_->threads) thread.join();
}

void ThreadPool::run_erased(int64_t count, Invoke invoke, void* context) {
  CHECK(count >= 0, count);
  if (count <= 1 || thread_count_ == 1) {
    for (int64_t index = 0; index < count; ++index) invoke(context, index, 0);
    return;
  }
  Team& team = *team_;
  team.leave_worker_cpus();
  const int64_t grain = (count + kMostUnits - 1) / kMostUnits;
  const int64_t units = (count + grain - 1) / grain;
  team.invoke.store(invoke, std::memory_order_relaxed);
  team.context.store(context, std::memory_order_relaxed);
  team.count.store(count, std::memory_order_relaxed);
  team.grain.store(grain, std::memory_order_relaxed);
  team.done.store(0, std::memory_order_relaxed);
  team.publish(units);
  const int64_t others = units - team.work(0);
  for (int polls = 0; team.done.load(std::memory_order_acquire) != others; ++polls) {
    // A worker may have lost its CPU in the middle of a unit; then let it have this one.
    if (polls < 2000 && team.may_spin) {
      _mm_pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace moray
