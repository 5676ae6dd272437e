// RMS norm of the residual stream, straight into the registers of the products.
//
// Every block computes it for itself: 2 hidden bytes a token from L2 cost less than one more
// launch. A warp holds one 256-column slice (8 columns a lane); only sums of squares and largest
// magnitudes cross warps. Order of the sum: a lane's 4 columns, lanes as a tree, slices in order.
#pragma once

#include "activations.cuh"
#include "constants.cuh"

inline constexpr int kHiddenSlices = moray::cuda::slices_of(kHidden, moray::cuda::kHiddenSpan);

// What norm weights a lane needs: loaded before wait_for_previous().
struct NormWeights {
  float w[4];

  __device__ __forceinline__ void load(const float* weights, int slice, int lane) {
    const int k = slice * moray::cuda::kSliceUnit + lane * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = k < kHidden ? weights[k + i] : 0.0f;
  }
  __device__ __forceinline__ float factor(int i) const {
    return kZeroCentredNorms ? 1.0f + w[i] : w[i];
  }
  // round(norm) of the pair (2i, 2i + 1), packed.
  __device__ __forceinline__ uint32 apply(uint32 pair, int i, float rms_inverse) const {
    float low = bf16_low(pair) * rms_inverse, high = bf16_high(pair) * rms_inverse;
    if (!kZeroCentredNorms) {
      low = round_bf16(low);
      high = round_bf16(high);
    }
    return float_bf16x2(low * factor(2 * i), high * factor(2 * i + 1));
  }
};

struct NormSums {  // in shared memory
  float squares[kHiddenSlices][16];
  float largest[kHiddenSlices][16];  // of |x * factor|
};

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
  return value;
}
__device__ __forceinline__ float warp_largest(float value) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

// x <- the slice of round(norm(residual)); all threads of the block call it, warps of one slice get
// equal bits. `staging`: this warp's 4 x kStagedTokenBytes of shared memory. Where `store` is not
// null, the rounded vectors go there too, [tokens, hidden].
template <Format kFormat, int kTokens>
__device__ __forceinline__ void norm_slice(Activations<widths_of(kTokens), 1>& x,
                                           const Bfloat16* residual, int tokens,
                                           const NormWeights& weights, NormSums& sums,
                                           char* staging, Bfloat16* store, int slice, int lane) {
  constexpr int kWidth = widths_of(kTokens);
  const int k = slice * moray::cuda::kSliceUnit + lane * 4;
  Pack8 raw[kTokens];
#pragma unroll
  for (int n = 0; n < kTokens; ++n) {
    raw[n] = Pack8{};
    if (n < tokens && k < kHidden) raw[n] = load_fresh_8(residual + n * kHidden + k);
  }
  // Absent tokens are zeros and go along: independent chains overlap.
#pragma unroll
  for (int n = 0; n < kTokens; ++n) {
    float squares = 0, largest = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float low = bf16_low(raw[n].word[i]), high = bf16_high(raw[n].word[i]);
      squares = fmaf(low, low, squares);
      squares = fmaf(high, high, squares);
      largest = fmaxf(largest, fmaxf(fabsf(low * weights.factor(2 * i)),
                                     fabsf(high * weights.factor(2 * i + 1))));
    }
    squares = warp_sum(squares);
    largest = warp_largest(largest);
    if (lane == 0) {
      sums.squares[slice][n] = squares;
      sums.largest[slice][n] = largest;
    }
  }
  __syncthreads();
  // Lane n looks after token n.
  float squares = 0, largest = 0;
  if (lane < kTokens) {
#pragma unroll
    for (int s = 0; s < kHiddenSlices; ++s) {
      squares += sums.squares[s][lane];
      largest = fmaxf(largest, sums.largest[s][lane]);
    }
  }
  const float rms_inverse = __frsqrt_rn(squares / kHidden + kNormEps);
  // 1 + 2^-7 covers the roundings to BF16.
  const PowerOfTwo power = f16_scale(largest * rms_inverse * 1.0078125f);
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int round = 0; round < kWidth * 2; ++round) {  // of 4 tokens
    const int width = round >> 1;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = round * 4 + i;
      if (n >= kTokens) break;
      const float factor = __shfl_sync(~0u, rms_inverse, n);
      const float scale = __shfl_sync(~0u, power.scale, n);
      Pack8 normed;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        normed.word[j] = k < kHidden ? weights.apply(raw[n].word[j], j, factor) : 0;
      }
      if (store != nullptr && k < kHidden && n < tokens) {
        *reinterpret_cast<Pack8*>(store + n * kHidden + k) = normed;
      }
      if (kFormat == Format::kFp8) {
#pragma unroll
        for (int j = 0; j < 2; ++j) normed.word[j] = bf16x2_scaled_f16x2(normed.word[j], scale);
      }
      if (n < tokens) {
        *reinterpret_cast<Pack8*>(staging + i * moray::cuda::kStagedTokenBytes + lane * 8) = normed;
      }
    }
    __syncwarp();
    if (g >> 2 == (round & 1)) {
      const char* const from = staging + (g & 3) * moray::cuda::kStagedTokenBytes;
      const bool present = width * 8 + g < tokens;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // 8 columns each
        const int column =
            kFormat == Format::kFp8 ? (i >> 1) * 64 + t * 16 + (i & 1) * 8 : i * 32 + t * 8;
        Pack16 piece = {};
        if (present) piece = *reinterpret_cast<const Pack16*>(from + column * 2);
#pragma unroll
        for (int w = 0; w < 4; ++w) x.b[width][i * 4 + w] = piece.word[w];
      }
    }
    __syncwarp();
  }
#pragma unroll
  for (int n = 0; n < kWidth; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float inverse = __shfl_sync(~0u, power.inverse, (n * 8 + t * 2 + i) & 31);
      x.inverse[n][i] = kFormat == Format::kFp8 ? inverse : 1.0f;
    }
  }
}
