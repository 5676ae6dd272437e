// Sums a buffer as 64-bit words, several accumulators wide so that loads, not additions, limit.
#include "src/generate/read_bandwidth.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <vector>

namespace moray {
namespace {

constexpr int64_t kSliceBytes = 64 * 1024;  // what a worker takes at a time; fits any L2
constexpr int kPasses = 15;
// Reading a pass may take no time at all for a tiny model; then passes are repeated inside one
// measurement until it reads this much.
constexpr int64_t kMeasuredBytesMin = int64_t{64} << 20;

// One clone an instruction set, picked by the loader: the loop is plain C++ and auto-vectorised.
__attribute__((target_clones("avx512f", "avx2", "default"))) uint64_t sum_words(
    const uint64_t* words, int64_t count) {
  constexpr int64_t kLanes = 32;
  std::array<uint64_t, kLanes> sums{};
  for (int64_t i = 0; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sums[static_cast<size_t>(lane)] += words[i + lane];
    }
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

}  // namespace

double measure_read_seconds(ThreadPool& pool, int64_t bytes) {
  constexpr int64_t kSliceWords = kSliceBytes / 8;
  const int64_t slices = std::max<int64_t>(1, (bytes + kSliceBytes - 1) / kSliceBytes);
  const std::vector<uint64_t> words(static_cast<size_t>(slices * kSliceWords), 1);
  const int64_t repeats =
      std::max<int64_t>(1, kMeasuredBytesMin / (slices * kSliceBytes));
  std::atomic<uint64_t> sink{0};  // makes the sums observable, so that the reads happen
  std::array<double, kPasses> seconds{};
  for (int pass = -1; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t repeat = 0; repeat < repeats; ++repeat) {
      pool.run(slices, [&](int64_t slice, int) {
        sink.fetch_add(sum_words(words.data() + slice * kSliceWords, kSliceWords),
                       std::memory_order_relaxed);
      });
    }
    const double elapsed =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (pass >= 0) seconds[static_cast<size_t>(pass)] = elapsed / static_cast<double>(repeats);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kPasses / 2, seconds.end());
  return seconds[kPasses / 2] * static_cast<double>(bytes) /
         static_cast<double>(slices * kSliceBytes);
}

}  // namespace moray
