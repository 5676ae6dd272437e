// A count of heap allocations, for tests that prove there are none.
//
// Including this replaces the program's operator new: exactly one file of a test program may.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace moray {

inline std::atomic<int64_t> heap_allocations{0};

}  // namespace moray

void* operator new(std::size_t size) {
  ++moray::heap_allocations;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
