// Input of the delta net's decode step: the convolution of q, k and v, its SiLU and norms, and the
// raw inputs that later steps convolve again. Included by delta_step.cu alone.
#pragma once

#include "src/kernels/cuda/delta_step_place.cuh"

namespace moray::cuda {
namespace {

// A vector to convolve: q (part 0), k (1) or a group of v's columns (2 and up), 32 elements apart.
struct Vector {
  int part;
  int first_channel, elements;

  // Past the vector's end its first channel, so that it can be read.
  __device__ int channel(int element) const {
    return first_channel + (element < elements ? element : 0);
  }
};

__device__ Vector find_vector(const Place& at, int part) {
  if (part < 2) return {part, (part * kKeyHeads + at.key_head) * kKeyDim, kKeyDim};
  const int column = (part - 2) * 32;
  return {part, 2 * kKeyHeads * kKeyDim + at.head * kValueDim + at.value_column() + column,
          min(32, kColumns - column)};
}

// Where input of the convolution `t` tokens after the step's first is; negative: before it.
__device__ const float* find_input(const DeltaStepParams& p, const Window& w, int channel, int t) {
  return (t >= 0 ? p.qkv + t * kChannels
                 : p.state.conv_tail + (w.pending + kPast + t) * kChannels) +
         channel;
}

// Asks for what a vector's convolution needs from before the step; it comes from device memory,
// the step's own inputs mostly from L2.
__device__ void prefetch_taps(const DeltaStepParams& p, const Place& at, const Window& w,
                              const Vector& vector) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int channel = vector.channel(at.lane + 32 * i);
    prefetch_l2(p.weights.conv + channel * kConvTaps);
#pragma unroll
    for (int t = -kPast; t < 0; ++t) {
      if (w.position + t >= 0) prefetch_l2(find_input(p, w, channel, t));
    }
  }
}

// One channel of one token: the inputs, oldest first, and the convolution's sum.
__device__ float convolve_channel(const DeltaStepParams& p, const Window& w, int channel, int token,
                                  float (&input)[kConvTaps]) {
  float weight[kConvTaps];
#pragma unroll
  for (int j = 0; j < kConvTaps; ++j) {
    const int t = token - kPast + j;
    weight[j] = p.weights.conv[channel * kConvTaps + j];
    input[j] = w.position + t >= 0 ? *find_input(p, w, channel, t) : 0.0f;
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kConvTaps; ++j) sum = fmaf(weight[j], input[j], sum);
  return sum;
}

// Keeps the raw inputs that later steps convolve again: the token's own and, with the first token
// of a step that opens a chunk, those before the step that stand ahead of that chunk.
__device__ void keep_inputs(const DeltaStepParams& p, const Window& w, int channel, int token,
                            const float (&input)[kConvTaps]) {
  const int row = w.position + token - w.last_chunk + kPast;
  if (row >= 0) p.state.conv_tail[row * kChannels + channel] = input[kPast];
  if (token > 0 || !w.opened()) return;
#pragma unroll
  for (int j = 0; j < kPast; ++j) {
    const int past_row = w.position - w.last_chunk + j;
    if (past_row >= 0) p.state.conv_tail[past_row * kChannels + channel] = input[j];
  }
}

// silu of the convolution; q and k normalised, q also times key_dim^-1/2. To shared memory. All is
// loaded before anything is stored, since the compiler must assume that a store to device memory
// changes what is loaded after it.
__device__ void convolve(const DeltaStepParams& p, const Place& at, const Window& w,
                         const Vector& vector, int token, Shared& shared) {
  float input[kPerLane][kConvTaps];
  float out[kPerLane];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int element = at.lane + 32 * i;
    const float sum = convolve_channel(p, w, vector.channel(element), token, input[i]);
    out[i] = element < vector.elements ? silu(sum) : 0.0f;
    squares = fmaf(out[i], out[i], squares);
  }
  if (vector.part >= 2) {
    shared.values[token][(vector.part - 2) * 32 + at.lane] = out[0];
  } else {
    float factor = rsqrtf(warp_sum(squares) + 1e-6f);
    if (vector.part == 0) factor *= rsqrtf(static_cast<float>(kKeyDim));
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      shared.vectors[token][vector.part][at.lane + 32 * i] = out[i] * factor;
    }
  }
  if (vector.part < 2 && !at.keeps_key_head()) return;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int element = at.lane + 32 * i;
    if (element < vector.elements) keep_inputs(p, w, vector.channel(element), token, input[i]);
  }
}

}  // namespace
}  // namespace moray::cuda
