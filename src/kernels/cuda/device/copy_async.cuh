// Asynchronous 16-byte copies from global to shared memory (cp.async), every architecture.
//
// Use: copy_16 any number of times, copy_commit closes a group; copy_wait<N> returns when all but
// the newest N groups of this thread have landed; other threads' copies are seen after the barrier
// that follows it.
#pragma once

#include "barrier.cuh"
#include "number.cuh"

// The whole 128-byte line is brought to L2, because a neighbouring piece of 64 bytes is wanted next
// and memory gives such pieces at 0.6 of its rate. Copies the first `bytes` (0..16) of 16 at
// `from`, zeros after them; nothing of `from` is read when bytes is 0.
__device__ __forceinline__ void copy_16(uint32 to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
