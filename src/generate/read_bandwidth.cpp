// Sums a buffer as 64-bit words, several accumulators wide so that loads, not additions, limit.
#include "src/generate/read_bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "src/generate/random.h"

namespace moray {
namespace {

constexpr int64_t kSliceBytes = 32 * 1024;  // what a worker takes at a time; half an expert matrix
constexpr int64_t kSliceWords = kSliceBytes / 8;
constexpr int kPasses = 101;
// Of the experts, enough to lie far outside any cache; all of a large model's would be a second
// copy of it in memory.
constexpr int64_t kPoolBytesMax = int64_t{1} << 30;

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

// Words set to 1 in huge pages where the system has them, as the weights are.
class ReadBuffer {
 public:
  explicit ReadBuffer(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(uint64_t);
    const size_t rounded = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    words_.reset(static_cast<uint64_t*>(std::aligned_alloc(kHugePageBytes, rounded)));
    if (words_ == nullptr) throw std::bad_alloc();
    (void)madvise(words_.get(), rounded, MADV_HUGEPAGE);
    std::fill_n(words_.get(), count, uint64_t{1});
  }
  const uint64_t* data() const { return words_.get(); }

 private:
  static constexpr size_t kHugePageBytes = size_t{2} << 20;
  struct Free {
    void operator()(uint64_t* words) const { std::free(words); }
  };
  std::unique_ptr<uint64_t, Free> words_;
};

int64_t slices_of(int64_t bytes) {
  return (bytes + kSliceBytes - 1) / kSliceBytes;
}

}  // namespace

double measure_read_seconds(ThreadPool& threads, const StepReads& reads) {
  const int64_t always = slices_of(reads.always_bytes);
  const int64_t pool_bytes =
      std::min(reads.pool_bytes, std::max(reads.chosen_bytes, kPoolBytesMax));
  const int64_t in_pool = slices_of(pool_bytes);
  const int64_t count = always + std::min(in_pool, slices_of(reads.chosen_bytes));
  const ReadBuffer words((always + in_pool) * kSliceWords);
  // Makes the sums observable, so that the reads happen; a cache line a worker.
  struct alignas(64) Sink {
    volatile uint64_t sum = 0;
  };
  std::vector<Sink> sinks(static_cast<size_t>(threads.thread_count()));
  std::array<double, kPasses> seconds{};
  for (int pass = -1; pass < kPasses; ++pass) {
    const auto pass_key = static_cast<uint64_t>(pass + 1);
    // Distinct slices: the first `count - always` of the pool's cycle from a random start.
    const auto first = static_cast<int64_t>(uniform_at(pass_key, 0) * static_cast<double>(in_pool));
    const auto start = std::chrono::steady_clock::now();
    threads.run(count, [&](int64_t index, int worker) {
      const int64_t slice = index < always ? index : always + (first + index - always) % in_pool;
      Sink& sink = sinks[static_cast<size_t>(worker)];
      sink.sum = sink.sum + sum_words(words.data() + slice * kSliceWords, kSliceWords);
    });
    const double elapsed =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (pass >= 0) seconds[static_cast<size_t>(pass)] = elapsed;
  }
  std::nth_element(seconds.begin(), seconds.begin() + kPasses / 2, seconds.end());
  return seconds[kPasses / 2] * static_cast<double>(reads.always_bytes + reads.chosen_bytes) /
         static_cast<double>(count * kSliceBytes);
}

}  // namespace moray
