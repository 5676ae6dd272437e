// One attention head by one warp: RMS norm, rotation, rounding to BF16.
//
// A lane holds elements lane, lane + 32, ... of the head. Statistics, angle and products are FP32;
// sine and cosine err by about 2^-23, so a rounded element differs from the oracle's by at most one
// BF16 spacing, where it stood on a border. Includes constants.cuh for the head's dimensions.
#pragma once

#include "constants.cuh"
#include "number.cuh"

namespace moray::cuda {

static_assert(kHeadDim % 32 == 0 && kRotaryDim % 2 == 0 && kRotaryDim <= kHeadDim);
inline constexpr int kHeadLaneDims = kHeadDim / 32;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// |angle| below 2^20. The angle less q quarter turns, in two steps because a float holds only 24
// bits of a quarter turn (Cody and Waite), then Taylor's series for |rest| <= pi / 4 and a little.
__device__ __forceinline__ void sine_cosine(float angle, float& sine, float& cosine) {
  const float turns = rintf(angle * 0.636619772f);
  float rest = __fmaf_rn(turns, -1.57079637f, angle);
  rest = __fmaf_rn(turns, 4.37113883e-8f, rest);
  const float square = rest * rest;
  float odd = __fmaf_rn(square, 2.75573192e-6f, -1.98412698e-4f);
  odd = __fmaf_rn(odd, square, 8.33333333e-3f);
  odd = __fmaf_rn(odd, square, -1.66666667e-1f);
  odd = __fmaf_rn(odd * square, rest, rest);
  float even = __fmaf_rn(square, -2.75573192e-7f, 2.48015873e-5f);
  even = __fmaf_rn(even, square, -1.38888889e-3f);
  even = __fmaf_rn(even, square, 4.16666667e-2f);
  even = __fmaf_rn(even, square, -0.5f);
  even = __fmaf_rn(even, square, 1.0f);
  const int quarter = static_cast<int>(turns) & 3;
  const float s = quarter & 1 ? even : odd, c = quarter & 1 ? odd : even;
  sine = quarter & 2 ? -s : s;
  cosine = quarter == 1 || quarter == 2 ? -c : c;
}

// What a head's preparation needs besides the head: of the lane's elements the norm's factor, and
// for those that rotate sine and cosine. Loaded and computed while the head is on its way.
struct HeadTables {
  static constexpr int kTurning = (kRotaryDim + 31) / 32;  // elements of a lane that may rotate
  float norm[kHeadLaneDims];
  float sine[kTurning], cosine[kTurning];
};
__device__ __forceinline__ HeadTables head_tables(const float* weight, const float* inv_freq,
                                                  int position) {
  constexpr int kHalf = kRotaryDim / 2;
  const int lane = threadIdx.x % 32;
  HeadTables tables;
#pragma unroll
  for (int i = 0; i < kHeadLaneDims; ++i) {
    const float w = weight[lane + 32 * i];
    tables.norm[i] = kZeroCentredNorms ? 1.0f + w : w;
  }
#pragma unroll
  for (int i = 0; i < HeadTables::kTurning; ++i) {
    const int dim = lane + 32 * i;
    tables.sine[i] = tables.cosine[i] = 0;
    if (dim >= kRotaryDim) continue;
    const float angle = __fmul_rn(float(position), inv_freq[dim < kHalf ? dim : dim - kHalf]);
    sine_cosine(angle, tables.sine[i], tables.cosine[i]);
    tables.sine[i] *= kRopeScale;
    tables.cosine[i] *= kRopeScale;
  }
  return tables;
}

// value: the raw head in, the prepared one out, not yet rounded. scratch: kHeadDim floats of the
// warp's own in shared memory.
__device__ __forceinline__ void prepare_head(float (&value)[kHeadLaneDims],
                                             const HeadTables& tables, float* scratch) {
  const int lane = threadIdx.x % 32;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kHeadLaneDims; ++i) squares = __fmaf_rn(value[i], value[i], squares);
  const float factor = rsqrtf(__fmaf_rn(warp_sum(squares), 1.0f / kHeadDim, kNormEps));
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kHeadLaneDims; ++i) {
    value[i] = value[i] * factor * tables.norm[i];
    scratch[lane + 32 * i] = value[i];
  }
  __syncwarp();
  constexpr int kHalf = kRotaryDim / 2;
#pragma unroll
  for (int i = 0; i < HeadTables::kTurning; ++i) {
    const int dim = lane + 32 * i;
    if (dim >= kRotaryDim) continue;
    const bool first = dim < kHalf;
    const float other = scratch[first ? dim + kHalf : dim - kHalf];
    value[i] = __fmaf_rn(value[i], tables.cosine[i],
                         first ? -other * tables.sine[i] : other * tables.sine[i]);
  }
}

}  // namespace moray::cuda
