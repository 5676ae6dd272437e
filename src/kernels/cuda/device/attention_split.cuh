// Partial results of the step kernel, and how splits follow from a token's position.
#pragma once

#include "attention_params.h"
#include "softmax.cuh"

namespace moray::cuda {

inline constexpr int kSplits = attention_splits(kMultiprocessors, kKvHeads);
inline constexpr int kTile = kAttentionTileKeys;

// {largest score, total} of [column, kv_head, split], then the sums [column, kv_head, split, dim];
// a column is a token's head of the KV head's group.
__device__ __forceinline__ long long partial_index(int column, int kv_head, int split) {
  return (static_cast<long long>(column) * kKvHeads + kv_head) * kSplits + split;
}
__device__ __forceinline__ float* partial_stats(float* partials, long long index) {
  return partials + 2 * index;
}
__device__ __forceinline__ float* partial_sums(float* partials, long long index) {
  constexpr long long kStats = 2LL * kStepTokensMax * kGroup * kKvHeads * kSplits;
  return partials + kStats + index * kHeadDim;
}

// Tiles that a token at `position` sees, how many of them form a split, and the number of splits.
__device__ __forceinline__ int tiles_of(int position) {
  return position / kTile + 1;
}
__device__ __forceinline__ int split_tiles_of(int position) {
  return (tiles_of(position) + kSplits - 1) / kSplits;
}
__device__ __forceinline__ int splits_of(int position) {
  const int per_split = split_tiles_of(position);
  return (tiles_of(position) + per_split - 1) / per_split;
}

// out of four dims of a column, from sums over all keys and their total weight.
__device__ __forceinline__ void write_quad(const AttentionStepParams& params, int kv_head,
                                           int column, int dim, float4 sum, float total) {
  const long long head = column / kGroup * kHeads + kv_head * kGroup + column % kGroup;
  float value[4] = {sum.x / total, sum.y / total, sum.z / total, sum.w / total};
  if (kHasGate) {
    const float4 gate =
        *reinterpret_cast<const float4*>(params.q_gate + head * kQueryStride + kHeadDim + dim);
    value[0] /= one_plus_exp(-gate.x);
    value[1] /= one_plus_exp(-gate.y);
    value[2] /= one_plus_exp(-gate.z);
    value[3] /= one_plus_exp(-gate.w);
  }
  *reinterpret_cast<uint2*>(params.out + head * kHeadDim + dim) = {
      float_bf16x2(value[0], value[1]), float_bf16x2(value[2], value[3])};
}

}  // namespace moray::cuda
