// What both attention kernels need of the softmax: exponentials to base 2 of scaled scores.
#pragma once

#include "constants.cuh"
#include "number.cuh"

namespace moray::cuda {

constexpr float square_root(float x) {
  float root = x;
  for (int i = 0; i < 40; ++i) root = 0.5f * (root + x / root);
  return root;
}

// exp2(kScoreScale * score) is exp(score * head_dim^-1/2).
inline constexpr float kScoreScale = 1.44269504f / square_root(float(kHeadDim));
inline constexpr float kLowestScore = -1e30f;  // below every score, yet finite
inline constexpr int kGroup = kHeads / kKvHeads;
inline constexpr int kQueryStride = kHeadDim * (kHasGate ? 2 : 1);  // elements from head to head

__device__ __forceinline__ float masked_score() {
  return bits_float(0xff800000u);
}  // weight 0

__device__ __forceinline__ float exp2_fast(float x) {  // within 2^-22, relative
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float one_plus_exp(float x) {
  return 1.0f + exp2_fast(1.44269504f * x);
}

// Within 2^-21, relative; 0 below about -88.
__device__ __forceinline__ float sigmoid_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(one_plus_exp(-x)));
  return y;
}

}  // namespace moray::cuda
