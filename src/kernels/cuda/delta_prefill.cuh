// Dimensions and positions that the prefill kernels of the gated delta net share.
#pragma once

#include "constants.cuh"
#include "src/kernels/cuda/delta_prefill_params.h"
#include "src/kernels/cuda/device/number.cuh"

namespace moray::cuda {

constexpr int kChunk = kDeltaChunkTokens;
constexpr int kPast = kConvTaps - 1;
constexpr int kKeyTile = delta_tile_width(kKeyDim);
constexpr int kValueTile = delta_tile_width(kValueDim);
constexpr int kScanColumns = delta_scan_columns(kValueDim);
constexpr int kColumnGroups = kValueTile / 16;
constexpr int kKeySteps = kKeyTile / 16;
constexpr int kTokenSteps = kChunk / 16;
constexpr int kTokenBlocks = kChunk / 8;
constexpr int kChannels = 2 * kKeyHeads * kKeyDim + kValueHeads * kValueDim;
constexpr int kRepeat = kValueHeads / kKeyHeads;

static_assert(kKeyDim > 0 && kValueHeads % kKeyHeads == 0 && kConvTaps >= 1 && kConvTaps <= 8);
static_assert(kKeyDim <= 128 && kValueDim <= 128 && kKeyDim % 4 == 0 && kValueDim % 4 == 0);

// A token of a chunk: pending ones came before the block, absent ones come after it.
__device__ __forceinline__ bool is_pending(const DeltaBlock& b, int position) {
  return position < b.call.position;
}
__device__ __forceinline__ bool is_present(const DeltaBlock& b, int position) {
  return position >= b.call.position && position < b.call.position + b.call.tokens;
}
__device__ __forceinline__ int chunk_position(const DeltaBlock& b, int chunk) {
  return b.first_chunk + chunk * kChunk;
}

__device__ __forceinline__ void unpack_four(uint2 pack, float (&out)[4]) {
  out[0] = bf16_low(pack.x);
  out[1] = bf16_high(pack.x);
  out[2] = bf16_low(pack.y);
  out[3] = bf16_high(pack.y);
}

// Four channels of the convolution's input at a position; before the block they are in the state,
// whose open chunk is the block's first.
__device__ __forceinline__ void load_input(const DeltaBlock& b, int position, int channel,
                                           float (&out)[4]) {
  if (is_present(b, position)) {
    const uint16* const row = b.call.qkv + int64(position - b.call.position) * kChannels;
    unpack_four(*reinterpret_cast<const uint2*>(row + channel), out);
  } else if (is_pending(b, position) && position >= 0) {
    const int row = position - b.first_chunk + kPast;
    const float4 four =
        *reinterpret_cast<const float4*>(b.call.state.conv_tail + row * kChannels + channel);
    out[0] = four.x;
    out[1] = four.y;
    out[2] = four.z;
    out[3] = four.w;
  } else {
    out[0] = out[1] = out[2] = out[3] = 0.0f;
  }
}

// The same for neighbouring positions. Inside the block no load waits for another's condition.
template <int kRows>
__device__ __forceinline__ void load_inputs(const DeltaBlock& b, int position, int channel,
                                            float (&out)[kRows][4]) {
  if (is_present(b, position) && is_present(b, position + kRows - 1)) {
    const uint16* const row = b.call.qkv + int64(position - b.call.position) * kChannels + channel;
    uint2 pack[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      pack[i] = *reinterpret_cast<const uint2*>(row + i * kChannels);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) unpack_four(pack[i], out[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kRows; ++i) load_input(b, position + i, channel, out[i]);
  }
}

}  // namespace moray::cuda
