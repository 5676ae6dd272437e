// Scalar functions of the gated delta net, FP32.
//
// Exponential and reciprocal are the hardware's. exp_fast(x) is off by about (2 + |x|) units in the
// last place, which for a decay or a sigmoid is that of its argument; reciprocals by one.
#pragma once

#include "src/kernels/cuda/device/number.cuh"
#include "src/kernels/cuda/device/special.cuh"

__device__ __forceinline__ float exp_fast(float x) {
  return exp2_approx(x * 1.4426950408889634f);
}
__device__ __forceinline__ float sigmoid(float x) {
  return reciprocal_approx(1.0f + exp_fast(-x));
}
__device__ __forceinline__ float silu(float x) {
  return x * sigmoid(x);
}
// log(1 + e^x) without overflow; x itself above 20.
__device__ __forceinline__ float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}
// The logarithm of a token's decay, at most 0.
__device__ __forceinline__ float log_decay_of(float a, float a_log, float dt_bias) {
  return -expf(a_log) * softplus(a + dt_bias);
}

// Sum over a warp; every lane gets the same bits, since each addition has the same two operands.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}
