// A barrier of all blocks of a grid, which must all be resident.
//
// Bit 31 of the counter flips when the last block arrives: block 0 adds what the others leave of
// 2^31. So nothing is reset, and any number of barriers and launches follow one another. What a
// block wrote before arrive() is visible after wait() to loads past the L1 cache.
//
// Between arrive() and wait() a block may do whatever needs nothing of the others.
#pragma once

#include "number.cuh"

struct GridBarrier {
  unsigned* counter;
  uint32 before = 0;  // of thread 0
  bool arrived = false;

  __device__ __forceinline__ explicit GridBarrier(unsigned* at) : counter(at) {}

  __device__ __forceinline__ void arrive() {
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint32 share = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
      asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(counter), "r"(share)
                   : "memory");
    }
    arrived = true;
  }
  // Nothing to do if no arrive() is open.
  __device__ __forceinline__ void wait() {
    if (!arrived) return;
    if (threadIdx.x == 0) {
      uint32 now;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
      } while (((now ^ before) & 0x80000000u) == 0);
    }
    __syncthreads();
    arrived = false;
  }
};
