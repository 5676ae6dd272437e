// Number formats on the device: widths, exact widening, rounding to nearest even.
//
// Invariant: results equal src/tensor/dtype.h bit for bit, subnormals included; NaN stays NaN.
// Nothing here needs a CUDA header, so that NVRTC alone compiles it. Packed pairs hold the element
// of the lower address in the lower half.
#pragma once

using uint8 = unsigned char;
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;
using int64 = long long;

struct alignas(16) Pack16 {  // one 16-byte access
  uint32 word[4];
};

__device__ __forceinline__ float bits_float(uint32 bits) { return __uint_as_float(bits); }

__device__ __forceinline__ float bf16_float(uint16 value) {
  return bits_float(uint32(value) << 16);
}
__device__ __forceinline__ float bf16_low(uint32 pair) { return bits_float(pair << 16); }
__device__ __forceinline__ float bf16_high(uint32 pair) { return bits_float(pair & 0xffff0000u); }

// Two floats to packed BF16: `low` goes to the lower half.
__device__ __forceinline__ uint32 float_bf16x2(float low, float high) {
  uint32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ uint16 float_bf16(float value) {
  uint16 half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}
__device__ __forceinline__ float round_bf16(float value) { return bf16_float(float_bf16(value)); }

__device__ __forceinline__ float f16_float(uint16 value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
  return wide;
}
__device__ __forceinline__ uint32 float_f16x2(float low, float high) {
  uint32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Two E4M3 codes (lower 16 bits) to packed F16, exact for every finite code.
__device__ __forceinline__ uint32 e4m3x2_f16x2(uint16 codes) {
  uint32 pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
  return pair;
}
// Two floats to E4M3, nearest even, saturating at +-448; NaN stays NaN.
__device__ __forceinline__ uint16 float_e4m3x2(float low, float high) {
  uint16 codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
