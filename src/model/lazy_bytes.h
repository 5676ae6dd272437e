// Zeroed memory that costs pages (of 2 MiB where the system gives them) only where it is touched,
// for caches sized by their maximum and for what a decode step reads.
//
// Invariant: data() is page-aligned and zero until written. Running out of address space is a bug
// of whoever did not ask State::bytes_needed() first, hence a CHECK.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "src/base/check.h"

namespace moray {

class LazyBytes {
 public:
  LazyBytes() = default;
  explicit LazyBytes(int64_t size) : size_(size) {
    CHECK(size >= 0, size);
    if (size == 0) return;
    void* mapped = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(mapped != MAP_FAILED, "bytes", size, "errno", errno);
    data_ = static_cast<std::byte*>(mapped);
    // Advice only: a system without huge pages refuses, and then pages are small.
    madvise(mapped, static_cast<size_t>(size), MADV_HUGEPAGE);
  }
  LazyBytes(LazyBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  LazyBytes& operator=(LazyBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~LazyBytes() {
    if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
  }

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace moray
