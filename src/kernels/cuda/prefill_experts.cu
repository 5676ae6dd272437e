// Experts of a prefill block, tokens sorted by expert: gate and up with SwiGLU, then down.
//
// A block makes one tile: up to 64 or 32 rows of one expert by 128 inner columns (gate_up: 128 rows
// of gate and the same 128 of up, so that a lane holds both factors of its products) or by 256
// columns of the hidden state (down). blockIdx.x runs along the weights, so that blocks sharing
// rows run together and the two or three tiles of an expert follow one another; blockIdx.y takes
// first the shared expert's tiles, then the plan's; blocks beyond tile_count leave.
#include "constants.cuh"
#include "device/product_tile.cuh"
#include "prefill_params.h"

namespace moray::cuda {

namespace {

// What a block works on; rows of the shared expert are the tokens themselves.
struct BlockTile {
  ExpertTile tile;
  bool shared;
};
template <int kTokens>
__device__ bool find_tile(const ExpertPlan& plan, int shared_tiles, int tokens, BlockTile& block) {
  int index = blockIdx.y;
  block.shared = index < shared_tiles;
  if (block.shared) {
    const int first = index * kTokens;
    block.tile = {0, first, min(kTokens, tokens - first)};
    return true;
  }
  index -= shared_tiles;
  if (index >= *plan.tile_count) return false;
  block.tile = plan.tiles[index];
  return true;
}

__device__ float silu(float x) {
  return __fdividef(x, 1 + __expf(-x));
}

template <bool kFp8, int kTokens>
__device__ __forceinline__ void gate_up_tile(const GateUpRowsParams& p, const BlockTile& block,
                                             const ExpertRecords& records, char* shared) {
  using Tile = ProductTile<kFp8, kTokens>;
  const char* record = records.base + block.tile.expert * records.record_bytes;
  const int first_row = blockIdx.x * (kTileWeights / 2);
  // Of each 32 rows of the tile the first 16 are gate's, the others up's.
  const TileRows weights(record, [&](int row) -> uint32 {
    const int n = first_row + row / 32 * 16 + row % 16;
    if (n >= records.width) return kAbsent;
    return (row & 16 ? records.up : 0) + uint32(n) * records.gate_stride * (kFp8 ? 1 : 2);
  });
  const TileRows tokens(p.x, [&](int row) -> uint32 {
    if (row >= block.tile.rows) return kAbsent;
    const int sorted = block.tile.first_row + row;
    const int token = block.shared ? sorted : p.plan.sorted[sorted] / p.top_k;
    return uint32(token) * p.x_stride * 2;
  });
  typename Tile::Sums sums = {};
  const int64 scale_row = int64(first_row / 128) * ((kHidden + 127) / 128);
  const float* const scales[2] = {
      reinterpret_cast<const float*>(record + records.gate_scales) + scale_row,
      reinterpret_cast<const float*>(record + records.up_scales) + scale_row};
  const bool idle = first_row + threadIdx.x / 32 * 16 >= records.width;
  product_tile<kFp8, kTokens>(sums, weights, tokens, kHidden, scales, idle, shared);

  const int n = first_row + Tile::weight_row() / 32 * 16 + Tile::weight_row() % 32;
  if (n >= records.width) return;
  Bf16* out = block.shared ? p.shared_inner : p.inner;
  const int stride = block.shared ? p.shared_stride : p.inner_stride;
#pragma unroll
  for (int j = 0; j < Tile::kColumns8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = Tile::token() + 8 * j + i;
      if (row >= block.tile.rows) continue;
      const float low = silu(sums[j][0][i]) * sums[j][1][i];
      const float high = silu(sums[j][0][2 + i]) * sums[j][1][2 + i];
      Bf16* to = out + int64(block.tile.first_row + row) * stride + n;
      *reinterpret_cast<uint32*>(to) = float_bf16x2(low, high);
    }
  }
}

template <bool kFp8, int kTokens>
__device__ __forceinline__ void down_tile(const DownRowsParams& p, const BlockTile& block,
                                          const ExpertRecords& records, char* shared) {
  using Tile = ProductTile<kFp8, kTokens>;
  const char* record = records.base + block.tile.expert * records.record_bytes;
  const int first_row = blockIdx.x * kTileWeights;
  const int warp_row = first_row + threadIdx.x / 32 * 32;
  const TileRows weights(record + records.down, [&](int row) -> uint32 {
    if (first_row + row >= kHidden) return kAbsent;
    return uint32(first_row + row) * records.down_stride * (kFp8 ? 1 : 2);
  });
  const Bf16* inner = block.shared ? p.shared_inner : p.inner;
  const int stride = block.shared ? p.shared_stride : p.inner_stride;
  const TileRows tokens(inner, [&](int row) -> uint32 {
    if (row >= block.tile.rows) return kAbsent;
    return uint32(block.tile.first_row + row) * stride * 2;
  });
  typename Tile::Sums sums = {};
  const float* const scales[1] = {reinterpret_cast<const float*>(record + records.down_scales) +
                                  int64(warp_row / 128) * ((records.width + 127) / 128)};
  product_tile<kFp8, kTokens>(sums, weights, tokens, records.width, scales, warp_row >= kHidden,
                              shared);

  Bf16* out = block.shared ? p.shared_out : p.out;
#pragma unroll
  for (int j = 0; j < Tile::kColumns8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = Tile::token() + 8 * j + i;
      if (row >= block.tile.rows) continue;
      const int sorted = block.tile.first_row + row;
      Bf16* to = out + int64(block.shared ? sorted : p.plan.sorted[sorted]) * kHidden;
#pragma unroll
      for (int f = 0; f < 2; ++f) {
        const int n = first_row + Tile::weight_row() + 16 * f;
        if (n >= kHidden) continue;
        *reinterpret_cast<uint32*>(to + n) = float_bf16x2(sums[j][f][i], sums[j][f][2 + i]);
      }
    }
  }
}

template <int kTokens>
__device__ __forceinline__ void gate_up(const GateUpRowsParams& p) {
  extern __shared__ __align__(128) char shared[];
  BlockTile block;
  if (!find_tile<kTokens>(p.plan, p.shared_tiles, p.tokens, block)) return;
  const ExpertRecords& records = block.shared ? p.shared : p.experts;
  if (int(blockIdx.x) * (kTileWeights / 2) >= records.width) return;
  const bool fp8 = block.shared ? kSharedFp8 : kExpertFp8;
  if constexpr (kExpertFp8 || kSharedFp8) {
    if (fp8) return gate_up_tile<true, kTokens>(p, block, records, shared);
  }
  if constexpr (!kExpertFp8 || (kSharedDim > 0 && !kSharedFp8)) {
    if (!fp8) gate_up_tile<false, kTokens>(p, block, records, shared);
  }
}

template <int kTokens>
__device__ __forceinline__ void down(const DownRowsParams& p) {
  extern __shared__ __align__(128) char shared[];
  BlockTile block;
  if (!find_tile<kTokens>(p.plan, p.shared_tiles, p.tokens, block)) return;
  const ExpertRecords& records = block.shared ? p.shared : p.experts;
  const bool fp8 = block.shared ? kSharedFp8 : kExpertFp8;
  if constexpr (kExpertFp8 || kSharedFp8) {
    if (fp8) return down_tile<true, kTokens>(p, block, records, shared);
  }
  if constexpr (!kExpertFp8 || (kSharedDim > 0 && !kSharedFp8)) {
    if (!fp8) down_tile<false, kTokens>(p, block, records, shared);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kTileThreads, 2)
    gate_up_rows_64(const __grid_constant__ GateUpRowsParams p) {
  gate_up<64>(p);
}
extern "C" __global__ void __launch_bounds__(kTileThreads, 2)
    gate_up_rows_32(const __grid_constant__ GateUpRowsParams p) {
  gate_up<32>(p);
}
extern "C" __global__ void __launch_bounds__(kTileThreads, 2)
    down_rows_64(const __grid_constant__ DownRowsParams p) {
  down<64>(p);
}
extern "C" __global__ void __launch_bounds__(kTileThreads, 2)
    down_rows_32(const __grid_constant__ DownRowsParams p) {
  down<32>(p);
}

}  // namespace moray::cuda
