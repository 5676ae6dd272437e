// Scalar functions of the gated delta net, FP32.
//
// Invariant: each is a pure function of its arguments, compiled the same way for the step and the
// prefill kernels; errors are a few units in the last place.
#pragma once

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + expf(-x));
}
__device__ __forceinline__ float silu(float x) {
  return __fdividef(x, 1.0f + expf(-x));
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
