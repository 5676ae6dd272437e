// The hardware's own special functions: fast, within a few units in the last place.
#pragma once

// 2^x; 0 below about -126, infinity above 128.
__device__ __forceinline__ float exp2_approx(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}
// 1 / x; 0 for infinity, infinity for 0 and for subnormal x.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}
