// Packed F16 arithmetic beyond conversion.
#pragma once

#include "number.cuh"

// The larger magnitude of each half. Magnitudes are ordered like their bits.
__device__ __forceinline__ uint32 max_abs_f16x2(uint32 a, uint32 b) {
  uint32 out;
  asm("{ .reg .b32 x, y; abs.f16x2 x, %1; abs.f16x2 y, %2; max.f16x2 %0, x, y; }"
      : "=r"(out)
      : "r"(a), "r"(b));
  return out;
}
// 2^exponent, exponent in [-126, 127].
__device__ __forceinline__ float power_of_two(int exponent) {
  return bits_float(static_cast<uint32>(exponent + 127) << 23);
}
