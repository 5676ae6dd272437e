// Exchanges within the four lanes 4 g .. 4 g + 3 that share a row of a matrix product's result.
#pragma once

#include "number.cuh"

// Word i of lane t becomes word t of lane i. All lanes of the warp take part.
__device__ __forceinline__ void transpose_quad(uint32 (&word)[4]) {
  const uint32 t = threadIdx.x % 4;
  const auto exchange = [](uint32& low, uint32& high, bool upper, int distance) {
    const uint32 got = __shfl_xor_sync(0xffffffffu, upper ? low : high, distance);
    (upper ? low : high) = got;
  };
  exchange(word[0], word[1], t & 1, 1);
  exchange(word[2], word[3], t & 1, 1);
  exchange(word[0], word[2], t & 2, 2);
  exchange(word[1], word[3], t & 2, 2);
}
__device__ __forceinline__ float max_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
