// Sums over slices, from the warps' registers to finished outputs, in slice order.
//
// Each warp puts its tiles' sums into its own scratch; after a barrier any thread adds up the
// slices of an output. With two buffers of kBatchTiles tiles one barrier a batch is enough: a
// buffer is written again only after the barrier of the batch between. With one, put() waits for
// the readers.
#pragma once

#include "constants.cuh"
#include "weight_ring.cuh"

using moray::cuda::kBatchTiles;

template <int kTokens>
struct PartialSums {
  static constexpr int kBuffers = moray::cuda::partial_buffers(kArch, kTokens);
  static constexpr int kFloats = moray::cuda::kPartialTokenFloats;
  char* scratch;  // of warp 0 of the block
  int warp_bytes;
  int tokens;

  __device__ __forceinline__ float* at(int warp, int tile) const {
    return reinterpret_cast<float*>(scratch + warp * warp_bytes) +
           tile % (kBuffers * kBatchTiles) * (tokens * kFloats);
  }
  // All warps of the block, tiles 0, 1, ... in turn.
  template <int kWidth>
  __device__ __forceinline__ void put(int warp, int tile, const float (&sum)[kWidth][4],
                                      int lane) const {
    if (kBuffers == 1 && tile > 0 && tile % kBatchTiles == 0) __syncthreads();
    float* const to = at(warp, tile);
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < kWidth; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = n * 8 + t * 2 + i;
        if (kTokens == 1 && (n > 0 || i > 0)) continue;
        if (token < tokens) {
          to[token * kFloats + g] = sum[n][i];
          to[token * kFloats + g + 8] = sum[n][i + 2];
        }
      }
    }
  }
  // The sum over `slices` warps from `first_warp` on.
  __device__ __forceinline__ float total(int first_warp, int slices, int tile, int token,
                                         int row) const {
    const float* from = at(first_warp, tile) + token * kFloats + row;
    float sum = 0;
#pragma unroll 8
    for (int s = 0; s < slices; ++s) {
      sum += *from;
      from += warp_bytes / 4;
    }
    return sum;
  }
  // True, after a barrier, when tile j is the last of its batch; the batch starts at `first`.
  __device__ __forceinline__ bool batch_done(int j, int count, int& first) const {
    if (j % kBatchTiles != kBatchTiles - 1 && j != count - 1) return false;
    __syncthreads();
    first = j - j % kBatchTiles;
    return true;
  }
};
