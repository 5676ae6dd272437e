// Activations as the second operand of a warp's products: one slice (kSpan x 128 columns) of up to
// 8 or 16 tokens in registers, laid out like the weights' pieces (weight_ring.cuh).
//
// Lane (g, t) holds of token g (and g + 8)
//   for FP8 weights   columns 64 s + 16 t .. + 15 in b[8 s .. 8 s + 7], as F16 times 2^e
//   for BF16 weights  columns 32 s + 8 t .. + 7   in b[4 s .. 4 s + 3], as they are
// and 2^-e of the tokens that its accumulators belong to. 2^e brings the largest magnitude of the
// vector that was looked at to [2^14, 2^15): exact in F16 down to 2^-29 of it.
#pragma once

#include "async_copy.cuh"
#include "src/kernels/cuda/decode_params.h"

using moray::cuda::Bfloat16;
using moray::cuda::Format;

// Groups of 8 tokens, the columns of one product.
__device__ __forceinline__ constexpr int widths_of(int tokens) {
  return (tokens + 7) / 8;
}

template <int kWidth, int kSpan>
struct Activations {
  static constexpr int kWords = kSpan * 16;
  uint32 b[kWidth][kWords];
  float inverse[kWidth][2];  // 2^-e of tokens 8n + 2t and 8n + 2t + 1

  // Sums of products with these activations become true sums.
  __device__ __forceinline__ void unscale(float (&sum)[kWidth][4]) const {
#pragma unroll
    for (int n = 0; n < kWidth; ++n) {
      sum[n][0] *= inverse[n][0];
      sum[n][1] *= inverse[n][1];
      sum[n][2] *= inverse[n][0];
      sum[n][3] *= inverse[n][1];
    }
  }
};

struct PowerOfTwo {
  float scale, inverse;
};
// For a vector whose magnitudes are at most `largest` (not NaN unless the vector has one).
__device__ __forceinline__ PowerOfTwo f16_scale(float largest) {
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23 & 255) - 127;
  const int e = min(max(exponent, -100), 127);
  return {bits_float(static_cast<uint32>(127 + 14 - e) << 23),
          bits_float(static_cast<uint32>(127 - 14 + e) << 23)};
}
__device__ __forceinline__ uint32 bf16x2_scaled_f16x2(uint32 pair, float scale) {
  return float_f16x2(bf16_low(pair) * scale, bf16_high(pair) * scale);
}

// Slices of dense BF16 vectors, from global memory: row(token) is the address of the slice's first
// column or null for a token that takes no part; `left` columns of it exist (a multiple of 8).
template <Format kFormat, int kWidth, int kSpan, typename Row>
__device__ __forceinline__ void load_activations(Activations<kWidth, kSpan>& x, const Row& row,
                                                 int left, int lane) {
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int n = 0; n < kWidth; ++n) {
    const Bfloat16* const at = row(n * 8 + g);
#pragma unroll
    for (int i = 0; i < kSpan * 4; ++i) {  // 8 columns each
      const int k = kFormat == Format::kFp8 ? (i >> 1) * 64 + t * 16 + (i & 1) * 8 : i * 32 + t * 8;
      Pack16 piece = {};
      if (at != nullptr && k < left) piece = load_fresh(at + k);
#pragma unroll
      for (int w = 0; w < 4; ++w) x.b[n][i * 4 + w] = piece.word[w];
    }
  }
}

// After load_activations for FP8 weights: to F16, each token's slice by its own power of two. For
// BF16 weights: inverse = 1.
template <Format kFormat, int kWidth, int kSpan>
__device__ __forceinline__ void scale_activations(Activations<kWidth, kSpan>& x, int lane) {
  const int t = lane & 3;
#pragma unroll
  for (int n = 0; n < kWidth; ++n) {
    if constexpr (kFormat != Format::kFp8) {
      x.inverse[n][0] = x.inverse[n][1] = 1;
    } else {
      uint32 pair = 0;  // magnitudes as bits, whose order is theirs
#pragma unroll
      for (int i = 0; i < kSpan * 16; ++i) pair = __vmaxu2(pair, x.b[n][i] & 0x7fff7fffu);
      uint32 largest = max(pair << 16, pair & 0xffff0000u);
      largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
      const PowerOfTwo power = f16_scale(bits_float(largest));
#pragma unroll
      for (int i = 0; i < kSpan * 16; ++i) x.b[n][i] = bf16x2_scaled_f16x2(x.b[n][i], power.scale);
      x.inverse[n][0] = __shfl_sync(~0u, power.inverse, t * 8);
      x.inverse[n][1] = __shfl_sync(~0u, power.inverse, t * 8 + 4);
    }
  }
}
