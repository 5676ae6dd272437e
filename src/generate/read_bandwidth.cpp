// Sums memory as 64-bit words, several accumulators wide so that loads, not additions, limit.
#include "src/generate/read_bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

namespace moray {
namespace {

constexpr size_t kUnitBytes = 32 * 1024;  // what a worker takes at a time; half an expert matrix
constexpr size_t kHugePageBytes = size_t{2} << 20;

// One clone an instruction set, picked by the loader: the loop is plain C++ and auto-vectorised.
// Pieces may be unaligned, as files are; the last bytes that fill no group of words are left out.
__attribute__((target_clones("avx512f", "avx2", "default"))) uint64_t sum_words(
    const std::byte* from, size_t bytes) {
  constexpr size_t kLanes = 32;
  std::array<uint64_t, kLanes> sums{};
  for (size_t at = 0; at + kLanes * 8 <= bytes; at += kLanes * 8) {
    std::array<uint64_t, kLanes> words;
    std::memcpy(words.data(), from + at, sizeof(words));
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += words[lane];
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

}  // namespace

ReadPlan::ReadPlan(std::span<const std::span<const std::byte>> pieces) {
  size_t in_unit = 0;
  for (std::span<const std::byte> piece : pieces) {
    bytes_ += static_cast<int64_t>(piece.size());
    while (!piece.empty()) {
      const size_t count = std::min(piece.size(), kUnitBytes - in_unit);
      slices_.push_back(piece.first(count));
      piece = piece.subspan(count);
      in_unit += count;
      if (in_unit < kUnitBytes) continue;
      ends_.push_back(slices_.size());
      in_unit = 0;
    }
  }
  if (in_unit > 0) ends_.push_back(slices_.size());
}

double ReadPlan::read(ThreadPool& threads) const {
  // Makes the sums observable, so that the reads happen; a cache line a worker.
  struct alignas(64) Sink {
    volatile uint64_t sum = 0;
  };
  std::vector<Sink> sinks(static_cast<size_t>(threads.thread_count()));
  const auto start = std::chrono::steady_clock::now();
  threads.run(static_cast<int64_t>(ends_.size()), [&](int64_t index, int worker) {
    const auto unit = static_cast<size_t>(index);
    uint64_t sum = 0;
    for (size_t i = unit == 0 ? 0 : ends_[unit - 1]; i < ends_[unit]; ++i) {
      sum += sum_words(slices_[i].data(), slices_[i].size());
    }
    Sink& sink = sinks[static_cast<size_t>(worker)];
    sink.sum = sink.sum + sum;
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TouchedBytes::TouchedBytes(int64_t count) : size_(static_cast<size_t>(count)) {
  const size_t rounded = (size_ + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, rounded)));
  if (memory_ == nullptr) throw std::bad_alloc();
  (void)madvise(memory_.get(), rounded, MADV_HUGEPAGE);
  std::memset(memory_.get(), 1, rounded);
}

void TouchedBytes::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

}  // namespace moray
