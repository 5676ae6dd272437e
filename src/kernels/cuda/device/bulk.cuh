// Bulk copies of boxes from global to shared memory by the copy unit (cp.async.bulk.tensor, sm_90).
//
// One thread starts a copy; the barrier counts its bytes. Coordinates are elements, fastest first;
// what lies outside the mapped tensor arrives as zeros and counts as bytes too. `map` must be a
// kernel parameter or in constant memory.
#pragma once

#include "barrier.cuh"

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void load_box(uint32 to, const void* map, int column, int row, int plane,
                                         uint32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(plane), "r"(barrier)
      : "memory");
}
// The same box to the same offset, and its bytes to the same barrier, of every block whose bit is
// set in `blocks`.
__device__ __forceinline__ void load_box_shared(uint32 to, const void* map, int column, int row,
                                                int plane, uint32 barrier, uint16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(plane), "r"(barrier), "h"(blocks)
      : "memory");
}

#endif  // __CUDA_ARCH__ >= 900
