// Dense projections of a prefill block: y = x W^T for up to four matrices of either format.
//
// A block of 256 threads makes one tile of 256 weight rows by 64 or 32 tokens. Tiles are
// numbered so that neighbouring blocks share sixteen rows of tiles of x and walk the weights
// together: a wave reads a few MB of either and the rest comes from L2.
#include "constants.cuh"
#include "device/product_tile.cuh"
#include "prefill_params.h"

namespace moray::cuda {

namespace {

inline constexpr int kTilesTogether = 16;

struct TilePlace {
  int tokens, weights;  // tile indices
};
__device__ TilePlace tile_place(int index, int token_tiles, int weight_tiles) {
  const int group = index / (kTilesTogether * weight_tiles);
  const int first = group * kTilesTogether;
  const int height = min(kTilesTogether, token_tiles - first);
  const int within = index - first * weight_tiles;
  return {first + within % height, within / height};
}

// Two neighbouring outputs of one token.
__device__ void put(const RowsTarget& target, int token, int n, float low, float high) {
  const int64 at = int64(token) * target.out_stride + n;
  if (target.output == RowsOutput::kF32) {
    float* out = static_cast<float*>(target.out) + at;
    out[0] = low;
    if (n + 1 < target.weight.rows) out[1] = high;
    return;
  }
  uint32* out = reinterpret_cast<uint32*>(static_cast<Bf16*>(target.out) + at);
  if (target.output == RowsOutput::kAddBf16) {
    const uint32 before = *out;
    low += bf16_low(before);
    high += bf16_high(before);
  }
  *out = float_bf16x2(low, high);
}

template <bool kFp8, int kTokens>
__device__ __forceinline__ void project_tile(const ProjectRowsParams& p, const RowsTarget& target,
                                             int first_token, int first_row, char* shared) {
  using Tile = ProductTile<kFp8, kTokens>;
  const Matrix& w = target.weight;
  const TileRows weights(w.data, [&](int row) -> uint32 {
    if (first_row + row >= w.rows) return kAbsent;
    return uint32(first_row + row) * w.stride * (kFp8 ? 1 : 2);
  });
  const TileRows tokens(p.x, [&](int row) -> uint32 {
    if (first_token + row >= p.tokens) return kAbsent;
    return uint32(first_token + row) * p.x_stride * 2;
  });
  typename Tile::Sums sums = {};
  const int warp_row = first_row + threadIdx.x / 32 * 32;
  const float* const scales[1] = {w.scales + int64(warp_row / 128) * ((w.cols + 127) / 128)};
  product_tile<kFp8, kTokens>(sums, weights, tokens, w.cols, scales, warp_row >= w.rows, shared);
#pragma unroll
  for (int j = 0; j < Tile::kColumns8; ++j) {
    const int token = first_token + Tile::token() + 8 * j;
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      const int n = first_row + Tile::weight_row() + 16 * f;
      if (n >= w.rows) continue;
      const float(&sum)[4] = sums[j][f];
      if (token < p.tokens) put(target, token, n, sum[0], sum[2]);
      if (token + 1 < p.tokens) put(target, token + 1, n, sum[1], sum[3]);
    }
  }
}

template <int kTokens>
__device__ __forceinline__ void project(const ProjectRowsParams& p) {
  extern __shared__ __align__(128) char shared[];
  const int token_tiles = (p.tokens + kTokens - 1) / kTokens;
  const TilePlace place = tile_place(blockIdx.x, token_tiles, gridDim.x / token_tiles);
  int index = 0;
  while (index + 1 < p.target_count && place.weights >= p.targets[index + 1].first_tile) ++index;
  const RowsTarget& target = p.targets[index];
  const int first_row = (place.weights - target.first_tile) * kTileWeights;
  const int first_token = place.tokens * kTokens;
  if constexpr (kProjectionFp8) {
    if (target.weight.format == Format::kFp8) {
      project_tile<true, kTokens>(p, target, first_token, first_row, shared);
      return;
    }
  }
  project_tile<false, kTokens>(p, target, first_token, first_row, shared);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kTileThreads, 2)
    project_rows_64(const __grid_constant__ ProjectRowsParams p) {
  project<64>(p);
}
extern "C" __global__ void __launch_bounds__(kTileThreads, 2)
    project_rows_32(const __grid_constant__ ProjectRowsParams p) {
  project<32>(p);
}

}  // namespace moray::cuda
