// Sums over slices, from the warps' registers to finished outputs, in slice order.
//
// Each warp puts its tiles' sums into its own scratch; after a barrier any thread adds up the
// slices of an output. Two buffers of kBatchTiles tiles make one barrier a batch enough: a buffer
// is written again only after the barrier of the batch between.
#pragma once

#include "weight_ring.cuh"

using moray::cuda::kBatchTiles;

template <int kTokens>
struct PartialSums {
  char* scratch;  // of warp 0 of the block
  int warp_bytes;
  int tokens;

  __device__ __forceinline__ float* at(int warp, int tile) const {
    constexpr int kFloats = moray::cuda::kPartialTokenFloats;
    return reinterpret_cast<float*>(scratch + warp * warp_bytes) +
           tile % (2 * kBatchTiles) * tokens * kFloats;
  }
  template <int kWidth>
  __device__ __forceinline__ void put(int warp, int tile, const float (&sum)[kWidth][4],
                                      int lane) const {
    constexpr int kFloats = moray::cuda::kPartialTokenFloats;
    float* const to = at(warp, tile);
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < kWidth; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = n * 8 + t * 2 + i;
        if (token < (kTokens == 1 ? 1 : tokens)) {
          to[token * kFloats + g] = sum[n][i];
          to[token * kFloats + g + 8] = sum[n][i + 2];
        }
      }
    }
  }
  // The sum over `slices` warps from `first_warp` on.
  __device__ __forceinline__ float total(int first_warp, int slices, int tile, int token,
                                         int row) const {
    constexpr int kFloats = moray::cuda::kPartialTokenFloats;
    float sum = 0;
    for (int s = 0; s < slices; ++s) sum += at(first_warp + s, tile)[token * kFloats + row];
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
