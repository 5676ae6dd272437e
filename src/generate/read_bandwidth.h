// How fast this machine's threads read what a decode step reads: the ceiling of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/base/thread_pool.h"

namespace moray {

// Bytes somewhere in memory, cut into units of about 32 KiB that threads share.
class ReadPlan {
 public:
  explicit ReadPlan(std::span<const std::span<const std::byte>> pieces);

  int64_t bytes() const { return bytes_; }
  // Adds all bytes up as words, and does nothing else; seconds.
  double read(ThreadPool& threads) const;

 private:
  std::vector<std::span<const std::byte>> slices_;
  std::vector<size_t> ends_;  // of each unit, in slices_
  int64_t bytes_ = 0;
};

// Memory in huge pages where the system has them, as weights and state have them, every page
// written; in place of a state, which only its session sees. Throws std::bad_alloc.
class TouchedBytes {
 public:
  explicit TouchedBytes(int64_t count);
  std::span<const std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_;
};

}  // namespace moray
