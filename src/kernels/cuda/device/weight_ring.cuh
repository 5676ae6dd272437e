// A warp's stream of weights: 16-row tiles of 256-column slices, through a ring in shared memory,
// into the tensor cores.
//
// Unit: a group = 16 rows x 256 bytes of a row. The warp copies two rows an instruction, whole
// cache lines, and reads back with g = lane / 4 and t = lane % 4, in step s of 4,
//     bytes [64 s + 16 t, + 16)   of row g and of row g + 8:
// those are lane (g, t)'s "own" k of the product (mma.cuh), in which activations are laid out alike
// (activations.cuh). In shared memory a row is 16 pieces of 16 bytes; odd rows have their piece
// numbers XORed with 4, so that the 8 lanes of an access (two rows) hit all banks once. A slice of
// FP8 is one group, of BF16 two.
//
// Why shared memory and not registers: 64 to 96 KiB a multiprocessor can be in flight, started
// before the previous kernel ends, at 64 registers a thread.
#pragma once

#include "activations.cuh"
#include "async_copy.cuh"
#include "mma.cuh"
#include "src/kernels/cuda/decode_params.h"

using moray::cuda::kSliceColumns;
using moray::cuda::kTileRows;

inline constexpr int kGroupBytes = 16 * 256;
inline constexpr int kSlotBytes = kGroupBytes + 16;  // and the slice's two FP8 scales

// Sixteen rows of a matrix. rows_left <= 0: no tile, nothing is read and products are zero.
struct TileRef {
  const char* rows_at;     // the first row, column 0
  const float* scales_at;  // kFp8: the scales of its row block
  int rows_left;           // of the matrix from its first row on; rows past them repeat the last
};

template <Format kFormat>
__device__ __forceinline__ constexpr int element_bytes() {
  return kFormat == Format::kFp8 ? 1 : 2;
}
template <Format kFormat>
__device__ __forceinline__ constexpr int groups_a_slice() {
  return element_bytes<kFormat>();
}

template <Format kFormat>
__device__ __forceinline__ TileRef tile_of(const char* data, const float* scales, int rows,
                                           int stride, int scale_cols, int tile) {
  const int row = tile * kTileRows;
  if (row >= rows) return {data, scales, 0};
  return {data + static_cast<int64>(row) * stride * element_bytes<kFormat>(),
          scales + static_cast<int64>(row / 128) * scale_cols, rows - row};
}

// Starts the copies of part `part` of `slice` of a tile; `stride` in elements.
template <Format kFormat>
__device__ __forceinline__ void start_group(char* slot, const TileRef& tile, int stride, int cols,
                                            int slice, int part, int lane) {
  const int row = lane >> 4, piece = lane & 15;
  const int row_bytes = stride * element_bytes<kFormat>();
  const int first = slice * kSliceColumns * element_bytes<kFormat>() + part * 256 + piece * 16;
  const uint32 to = shared_offset(slot) + row * 256 + (piece ^ (row * 4)) * 16;
  if (tile.rows_left >= kTileRows && first - piece * 16 + 256 <= row_bytes) {
    const char* from = tile.rows_at + static_cast<int64>(row) * row_bytes + first;
#pragma unroll
    for (int i = 0; i < 8; ++i, from += 2 * row_bytes) copy_16(to + i * 512, from);
  } else {
    const bool inside = first < row_bytes;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool present = inside && tile.rows_left > 0;
      const int at = min(row + i * 2, tile.rows_left - 1);
      copy_16(to + i * 512,
              present ? tile.rows_at + static_cast<int64>(at) * row_bytes + first : tile.rows_at,
              present);
    }
  }
  if (kFormat == Format::kFp8 && lane < 2) {
    const bool present = tile.rows_left > 0 && slice * kSliceColumns + lane * 128 < cols;
    copy_4(shared_offset(slot) + kGroupBytes + lane * 4,
           present ? tile.scales_at + slice * 2 + lane : tile.scales_at, present);
  }
}

// sum[n] += the group's products with columns 8n..8n+7 of the activations b. FP8: each 128-slice on
// its own, then times its scale.
template <Format kFormat, int kWidth>
__device__ __forceinline__ void multiply_group(const char* slot, int part,
                                               const uint32 (&b)[kWidth][32],
                                               float (&sum)[kWidth][4], int lane) {
  const int g = lane >> 2, t = lane & 3;
  const Pack16* const rows = reinterpret_cast<const Pack16*>(slot) + g * 16;
  const auto own = [&](int s, int lower) {  // of row g, or of row g + 8
    return rows[lower * 128 + ((s * 4 + t) ^ ((g & 1) * 4))];
  };
  if constexpr (kFormat == Format::kFp8) {
    const float* const scales = reinterpret_cast<const float*>(slot + kGroupBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float acc[kWidth][4] = {};
#pragma unroll
      for (int s = half * 2; s < half * 2 + 2; ++s) {
        const Pack16 low = own(s, 0), high = own(s, 1);
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const uint32 a0 = e4m3x2_f16x2(static_cast<uint16>(low.word[q]));
          const uint32 a1 = e4m3x2_f16x2(static_cast<uint16>(high.word[q]));
          const uint32 a2 = e4m3x2_f16x2(static_cast<uint16>(low.word[q] >> 16));
          const uint32 a3 = e4m3x2_f16x2(static_cast<uint16>(high.word[q] >> 16));
#pragma unroll
          for (int n = 0; n < kWidth; ++n) {
            mma_f16(acc[n], a0, a1, a2, a3, b[n][s * 8 + q * 2], b[n][s * 8 + q * 2 + 1]);
          }
        }
      }
      const float scale = scales[half];
#pragma unroll
      for (int n = 0; n < kWidth; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[n][i] = fmaf(acc[n][i], scale, sum[n][i]);
      }
    }
  } else {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const Pack16 low = own(s, 0), high = own(s, 1);
#pragma unroll
      for (int q = 0; q < 4; q += 2) {
#pragma unroll
        for (int n = 0; n < kWidth; ++n) {
          mma_bf16(sum[n], low.word[q], high.word[q], low.word[q + 1], high.word[q + 1],
                   b[n][part * 16 + s * 4 + q], b[n][part * 16 + s * 4 + q + 1]);
        }
      }
    }
  }
}

// The ring of one warp over one slice of a sequence of tiles. locate(j) gives tile j.
template <Format kFormat, int kDepth>
struct WeightRing {
  static constexpr int kGroups = groups_a_slice<kFormat>();
  char* slots;  // this warp's [kDepth][kSlotBytes], 16-byte aligned
  int stride, cols, slice, lane;
  int front;

  // Starts the first kDepth groups of `count` tiles.
  template <typename Locate>
  __device__ __forceinline__ void fill(int count, const Locate& locate) {
    front = 0;
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      if (i / kGroups < count) start(i, locate(i / kGroups), i % kGroups);
      commit_copies();
    }
  }

  // Multiplies the tiles in order by x, which prepare(j) may change for tile j; take(j, sum) gets
  // the tile's sums over the slice. All lanes of the warp take part in each call.
  template <int kWidth, typename Locate, typename Prepare, typename Take>
  __device__ __forceinline__ void run(int count, const Locate& locate, const Activations<kWidth>& x,
                                      const Prepare& prepare, const Take& take) {
    for (int j = 0; j < count; ++j) {
      prepare(j);
      float sum[kWidth][4] = {};
#pragma unroll
      for (int part = 0; part < kGroups; ++part) {
        wait_copies<kDepth - 1>();
        __syncwarp();  // a lane reads what others copied
        multiply_group<kFormat>(slots + front * kSlotBytes, part, x.b, sum, lane);
        __syncwarp();
        constexpr int kAhead = kDepth;
        const int next = j + (part + kAhead) / kGroups;
        if (next < count) start(front, locate(next), (part + kAhead) % kGroups);
        commit_copies();
        front = front + 1 == kDepth ? 0 : front + 1;
      }
      x.unscale(sum);
      take(j, sum);
    }
  }

 private:
  __device__ __forceinline__ void start(int slot, const TileRef& tile, int part) {
    start_group<kFormat>(slots + slot * kSlotBytes, tile, stride, cols, slice, part, lane);
  }
};
