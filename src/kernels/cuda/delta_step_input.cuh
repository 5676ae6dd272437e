// What the delta step makes of its inputs: convolution, norms and gates, to shared memory; and the
// raw inputs that later steps convolve again.
#pragma once

#include "src/kernels/cuda/delta_math.cuh"
#include "src/kernels/cuda/delta_step_place.cuh"
#include "src/kernels/cuda/device/prefetch.cuh"

namespace moray::cuda {

// A vector to convolve: q (part 0), k (1) or a group of v's columns (2 and up), 32 elements apart.
struct Vector {
  int part;
  int first_channel, elements;

  // Past the vector's end its last channel, so that it can be read. kWhole: never past the end.
  template <bool kWhole>
  __device__ int channel(int element) const {
    return first_channel + (kWhole ? element : min(element, elements - 1));
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
    const int channel = vector.channel<false>(at.lane + 32 * i);
    prefetch_l2(p.weights.conv + channel * kConvTaps);
#pragma unroll
    for (int t = -kPast; t < 0; ++t) prefetch_l2(find_input(p, w, channel, t));
  }
}

// The weights of a channel; four taps in one access.
__device__ void load_weights(const DeltaStepParams& p, int channel, float (&weight)[kConvTaps]) {
  const float* const from = p.weights.conv + channel * kConvTaps;
  if constexpr (kConvTaps == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    weight[0] = four.x;
    weight[1] = four.y;
    weight[2] = four.z;
    weight[3] = four.w;
  } else {
#pragma unroll
    for (int j = 0; j < kConvTaps; ++j) weight[j] = from[j];
  }
}

// A channel's inputs for one token, oldest first. Rows before the sequence exist but hold nothing;
// they are read all the same, so that no load waits behind a branch.
__device__ void load_inputs(const DeltaStepParams& p, const Window& w, int channel, int token,
                            float (&input)[kConvTaps]) {
#pragma unroll
  for (int j = 0; j < kConvTaps; ++j) {
    const int t = token - kPast + j;
    const float value = *find_input(p, w, channel, t);
    input[j] = w.position + t >= 0 ? value : 0.0f;
  }
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

// A lane's elements of one token's vector, 32 apart: silu of the convolution. All is loaded before
// anything is stored, since the compiler must assume that a store to device memory changes what is
// loaded after it.
template <int kCount, bool kWhole>
__device__ void convolve(const DeltaStepParams& p, const Place& at, const Window& w,
                         const Vector& vector, int token, float (&out)[kCount]) {
  float weight[kCount][kConvTaps], input[kCount][kConvTaps];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int channel = vector.channel<kWhole>(at.lane + 32 * i);
    load_weights(p, channel, weight[i]);
    load_inputs(p, w, channel, token, input[i]);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kConvTaps; ++j) sum = fmaf(weight[i][j], input[i][j], sum);
    out[i] = kWhole || at.lane + 32 * i < vector.elements ? silu(sum) : 0.0f;
  }
  if (vector.part < 2 && !at.keeps_key_head()) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int element = at.lane + 32 * i;
    if (kWhole || element < vector.elements) {
      keep_inputs(p, w, vector.channel<kWhole>(element), token, input[i]);
    }
  }
}

// The same to shared memory; q and k normalised, q also times key_dim^-1/2.
__device__ void convolve_vector(const DeltaStepParams& p, const Place& at, const Window& w,
                                const Vector& vector, int token, Shared& shared) {
  if (vector.part >= 2) {
    float out[1];
    convolve<1, kColumns % 32 == 0>(p, at, w, vector, token, out);
    shared.values[token][(vector.part - 2) * 32 + at.lane] = out[0];
    return;
  }
  float out[kPerLane];
  convolve<kPerLane, kKeyDim % 32 == 0>(p, at, w, vector, token, out);
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) squares = fmaf(out[i], out[i], squares);
  float factor = rsqrtf(warp_sum(squares) + 1e-6f);
  if (vector.part == 0) factor *= rsqrtf(static_cast<float>(kKeyDim));
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    shared.vectors[token][vector.part][at.lane + 32 * i] = out[i] * factor;
  }
}

// Enters the segment's tokens in the chunk's decays.
__device__ void add_decays(const Segment& segment, int thread, Shared& shared) {
  if (thread < segment.count) {
    shared.decay[segment.place + thread] = shared.token_decay[segment.first + thread];
  }
}

// beta and G of the step's tokens, a lane a token. One warp. The chunk's decays get them as well,
// unless the old ones are still needed to fold it.
__device__ void compute_gates(const DeltaStepParams& p, const Place& at, const Window& w,
                              float a_log, float dt_bias, Shared& shared) {
  const int index = min(at.lane, w.count - 1) * kValueHeads + at.head;
  const float a = p.a[index], b = p.b[index];
  const float g = log_decay_of(a, a_log, dt_bias);
  if (at.lane < w.count) shared.beta[at.lane] = sigmoid(b);
  float total = w.pending > 0 ? shared.decay[w.pending - 1] : 0.0f;
  for (int t = 0; t < w.count; ++t) {
    const float own = __shfl_sync(0xffffffffu, g, t);
    total = (w.position + t) % kChunk == 0 ? own : total + own;
    if (at.lane == t) shared.token_decay[t] = total;
  }
  __syncwarp();
  if (w.place() > 0) add_decays({0, w.first_run(), w.place()}, at.lane, shared);
}

}  // namespace moray::cuda
