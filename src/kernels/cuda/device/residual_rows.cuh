// Sixteen rows of the residual stream of each token, on their way into shared memory while a block
// computes what will be added to them: no register holds them, no load waits at the end.
#pragma once

#include "async_copy.cuh"
#include "src/kernels/cuda/decode_params.h"

template <int kTokens>
struct ResidualRows {
  alignas(16) moray::cuda::Bfloat16 old[kTokens][moray::cuda::kTileRows];

  // Threads 0 .. 2 tokens - 1 of those that call it with their index copy 8 rows each. Visible
  // after wait_copies<0>() and a barrier. hidden is a multiple of 8.
  __device__ __forceinline__ void start(const moray::cuda::Bfloat16* residual, int hidden, int tile,
                                        int tokens, int index) {
    if (index < 0 || index >= tokens * 2) return;
    const int token = index / 2, half = index % 2 * 8;
    const int row = tile * moray::cuda::kTileRows + half;
    const bool present = row < hidden;
    copy_16(shared_offset(&old[token][half]), residual + (present ? token * hidden + row : 0),
            present);
  }
};
