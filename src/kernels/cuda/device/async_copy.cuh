// Copies from global to shared memory that run while the thread goes on (cp.async), and loads that
// see what an earlier kernel wrote.
//
// Contract: a copy is visible to the thread that started it after wait_copies, to others after a
// barrier as well. Groups complete in the order of commit_copies.
#pragma once

#include "number.cuh"

struct alignas(8) Pack8 {
  uint32 word[2];
};

__device__ __forceinline__ uint32 shared_offset(const void* pointer) {
  return static_cast<uint32>(__cvta_generic_to_shared(pointer));
}

// 16 bytes past the L1 cache. With `present` false the 16 bytes become zero and nothing is read.
__device__ __forceinline__ void copy_16(uint32 to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(present ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_16(uint32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_4(uint32 to, const void* from, bool present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(present ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most kPending of the groups committed last are still running.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// From the L2 cache, where the writes of earlier kernels are: with programmatic launch this
// multiprocessor's L1 may hold a line from before them.
__device__ __forceinline__ Pack16 load_fresh(const void* address) {
  Pack16 pack;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(pack.word[0]), "=r"(pack.word[1]), "=r"(pack.word[2]), "=r"(pack.word[3])
               : "l"(address)
               : "memory");
  return pack;
}
__device__ __forceinline__ Pack8 load_fresh_8(const void* address) {
  Pack8 pack;
  asm volatile("ld.global.cg.v2.u32 {%0,%1}, [%2];"
               : "=r"(pack.word[0]), "=r"(pack.word[1])
               : "l"(address)
               : "memory");
  return pack;
}
__device__ __forceinline__ float load_fresh_float(const float* address) {
  float value;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(address) : "memory");
  return value;
}
