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

}  // namespace moray::cuda
