// ThreadPool: every index exactly once, effects visible, any team size, and sleep between loops.
#include "src/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

namespace moray {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, EveryIndexOnceWithAValidWorker) {
  ThreadPool pool(GetParam());
  ASSERT_EQ(pool.thread_count(), GetParam());
  for (int64_t count : {0, 1, 2, 3, 17, 1000}) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
    std::atomic<bool> worker_valid{true};
    pool.run(count, [&](int64_t index, int worker) {
      visits[static_cast<size_t>(index)].fetch_add(1);
      if (worker < 0 || worker >= pool.thread_count()) worker_valid = false;
    });
    EXPECT_TRUE(worker_valid);
    for (const auto& visit : visits) EXPECT_EQ(visit.load(), 1);
  }
}

// Plain (non-atomic) writes of a loop must be visible to the caller and to the next loop.
TEST_P(ThreadPoolTest, LoopsSeeEachOthersWrites) {
  ThreadPool pool(GetParam());
  constexpr int64_t kCount = 37;
  std::vector<int64_t> values(kCount, 0);
  for (int64_t round = 0; round < 20000; ++round) {
    pool.run(kCount, [&](int64_t index, int) {
      values[static_cast<size_t>(kCount - 1 - index)] += index ^ round;
    });
  }
  for (int64_t index = 0; index < kCount; ++index) {
    int64_t expected = 0;
    for (int64_t round = 0; round < 20000; ++round) expected += index ^ round;
    ASSERT_EQ(values[static_cast<size_t>(kCount - 1 - index)], expected);
  }
}

// Gaps longer than the spin time let the workers sleep; each loop must still be served.
TEST_P(ThreadPoolTest, WakesAfterSleeping) {
  ThreadPool pool(GetParam());
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 50; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(20 * (round % 10)));
    pool.run(8, [&](int64_t index, int) { sum += index; });
  }
  EXPECT_EQ(sum.load(), 50 * 28);
}

INSTANTIATE_TEST_SUITE_P(TeamSizes, ThreadPoolTest, testing::Values(1, 2, 3, 5, 16));

TEST(ThreadPool, AnIdleTeamCostsNoCpuTime) {
  ThreadPool pool(2);
  pool.run(4, [](int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double busy_ms = 1000.0 * double(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(busy_ms, 20);  // a spinning worker would show about 200
}

// More indices than a share's bounds can hold are claimed in groups; none may be lost at the ends.
TEST(ThreadPool, EveryIndexOnceInAVeryLongLoop) {
  ThreadPool pool(3);
  for (const int64_t count : {65535, 65536, 200001}) {
    std::vector<uint8_t> visits(static_cast<size_t>(count), 0);
    pool.run(count, [&](int64_t index, int) { ++visits[static_cast<size_t>(index)]; });
    for (const uint8_t visit : visits) ASSERT_EQ(visit, 1);
  }
}

TEST(ThreadPool, ACallerOnAWorkersCpuIsMovedAndKeepsItsAffinity) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "one CPU";
  ThreadPool pool(2);
  std::atomic<int> worker_cpu{-1};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  pool.run(2, [&](int64_t, int worker) {  // the caller waits in its index until the worker has one
    if (worker == 1) worker_cpu = sched_getcpu();
    while (worker_cpu < 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  });
  ASSERT_GE(worker_cpu, 0);
  int stood_there = 0, moves = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(worker_cpu, &only);
    ASSERT_EQ(sched_setaffinity(0, sizeof(only), &only), 0);
    ASSERT_EQ(sched_setaffinity(0, sizeof(allowed), &allowed), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // it moves a caller so often only
    if (sched_getcpu() != worker_cpu) continue;
    ++stood_there;
    pool.run(2, [](int64_t, int) {});
    moves += sched_getcpu() != worker_cpu;
    cpu_set_t after;
    ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&after, &allowed));
  }
  if (stood_there == 0) GTEST_SKIP() << "the kernel never left the caller on that CPU";
  EXPECT_GT(moves, 0) << "of " << stood_there;
}

TEST(ThreadPool, ZeroPicksAtLeastOneThread) {
  EXPECT_GE(ThreadPool(0).thread_count(), 1);
}

}  // namespace
}  // namespace moray
