// A warp's stream of weights: 16-row tiles of one slice of columns, through a ring in shared
// memory, into the tensor cores.
//
// Unit: a group = 16 rows x 128 bytes of a row. The warp copies four rows an instruction, whole
// cache lines, and reads back with g = lane / 4 and t = lane % 4, in step s of 2,
//     bytes [64 s + 16 t, + 16)   of row g and of row g + 8:
// those are lane (g, t)'s "own" k of the product (mma.cuh), in which activations are laid out alike
// (activations.cuh). In shared memory a row is 8 pieces of 16 bytes; odd rows have their piece
// numbers XORed with 4, so that the 8 lanes of an access (two rows) hit all banks once. 128 columns
// of FP8 are one group, of BF16 two.
//
// Why shared memory and not registers: 64 to 96 KiB a multiprocessor can be in flight, started
// before the previous kernel ends, at 64 registers a thread.
#pragma once

#include "activations.cuh"
#include "async_copy.cuh"
#include "mma.cuh"
#include "src/kernels/cuda/decode_params.h"

using moray::cuda::kGroupBytes;
using moray::cuda::kRingSlotBytes;
using moray::cuda::kSliceUnit;
using moray::cuda::kTileRows;

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
__device__ __forceinline__ TileRef tile_of(const char* data, const float* scales, int rows,
                                           int stride, int scale_cols, int tile) {
  const int row = tile * kTileRows;
  if (row >= rows) return {data, scales, 0};
  return {data + static_cast<int64>(row) * (stride * element_bytes<kFormat>()),
          scales + row / 128 * scale_cols, rows - row};
}

// sum[n] += the products of group `part` of a slice with columns 8n..8n+7 of the activations b: two
// independent chains of products, added; for FP8 then times the scale of the 128 columns.
template <Format kFormat, int kWidth, int kWords>
__device__ __forceinline__ void multiply_group(const char* slot, int part,
                                               const uint32 (&b)[kWidth][kWords],
                                               float (&sum)[kWidth][4], int lane) {
  const int g = lane >> 2, t = lane & 3;
  const Pack16* const rows = reinterpret_cast<const Pack16*>(slot) + g * 8;
  float chain[2][kWidth][4] = {};
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const Pack16* const own = rows + ((s * 4 + t) ^ ((g & 1) * 4));
    const Pack16 low = own[0], high = own[64];
    if constexpr (kFormat == Format::kFp8) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const uint32 a0 = e4m3x2_f16x2(static_cast<uint16>(low.word[q]));
        const uint32 a1 = e4m3x2_f16x2(static_cast<uint16>(high.word[q]));
        const uint32 a2 = e4m3x2_f16x2(static_cast<uint16>(low.word[q] >> 16));
        const uint32 a3 = e4m3x2_f16x2(static_cast<uint16>(high.word[q] >> 16));
        const int at = part * 16 + s * 8 + q * 2;
#pragma unroll
        for (int n = 0; n < kWidth; ++n) {
          mma_f16(chain[s][n], a0, a1, a2, a3, b[n][at], b[n][at + 1]);
        }
      }
    } else {
#pragma unroll
      for (int q = 0; q < 4; q += 2) {
        const int at = part * 8 + s * 4 + q;
#pragma unroll
        for (int n = 0; n < kWidth; ++n) {
          mma_bf16(chain[s][n], low.word[q], high.word[q], low.word[q + 1], high.word[q + 1],
                   b[n][at], b[n][at + 1]);
        }
      }
    }
  }
  float scale = 1;
  if (kFormat == Format::kFp8) scale = *reinterpret_cast<const float*>(slot + kGroupBytes);
#pragma unroll
  for (int n = 0; n < kWidth; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[n][i] = fmaf(chain[0][n][i] + chain[1][n][i], scale, sum[n][i]);
    }
  }
}

// The ring of one warp over one slice of a sequence of tiles; locate(j) gives tile j. kStride: the
// matrix's elements a row where all matrices of the kernel agree, which makes offsets immediate; 0
// where they do not.
template <Format kFormat, int kSpan, int kDepth, int kStride>
struct WeightRing {
  static constexpr int kGroups = kSpan * element_bytes<kFormat>();  // a tile
  static constexpr bool kWhole = kStride > 0 && kStride % (kSpan * kSliceUnit) == 0;

  char* slots;    // this warp's [kDepth][kRingSlotBytes], 16-byte aligned
  int row_bytes;  // of the matrix
  int cols, slice, lane;
  int lane_offset;  // of the lane's piece of the slice's first group, from the tile's first row
  int front;

  __device__ __forceinline__ WeightRing(char* rings, int warp, int stride, int of_cols,
                                        int of_slice, int of_lane)
      : slots(rings + warp * kDepth * kRingSlotBytes),
        row_bytes((kStride > 0 ? kStride : stride) * element_bytes<kFormat>()),
        cols(of_cols),
        slice(of_slice),
        lane(of_lane),
        lane_offset((lane >> 3) * row_bytes + slice * (kGroups * 128) + (lane & 7) * 16),
        front(0) {}

  // Starts the first kDepth groups of `count` tiles.
  template <typename Locate>
  __device__ __forceinline__ void fill(int count, const Locate& locate) {
    front = 0;
#pragma unroll 1
    for (int i = 0; i < kDepth; ++i) {
      if (i / kGroups < count) start(i, locate(i / kGroups), i % kGroups);
      commit_copies();
    }
  }

  // Multiplies the tiles in order by x, which prepare(j) may change for tile j; take(j, sum) gets
  // the tile's sums over the slice. All lanes of the warp take part in each call.
  template <int kWidth, typename Locate, typename Prepare, typename Take>
  __device__ __forceinline__ void run(int count, const Locate& locate,
                                      const Activations<kWidth, kSpan>& x, const Prepare& prepare,
                                      const Take& take) {
#pragma unroll 1
    for (int j = 0; j < count; ++j) {
      prepare(j);
      float sum[kWidth][4] = {};
#pragma unroll
      for (int part = 0; part < kGroups; ++part) {
        wait_copies<kDepth - 1>();
        __syncwarp();  // a lane reads what others copied
        multiply_group<kFormat>(slots + front * kRingSlotBytes, part, x.b, sum, lane);
        __syncwarp();
        const int next = j + (part + kDepth) / kGroups;
        if (next < count) start(front, locate(next), (part + kDepth) % kGroups);
        commit_copies();
        front = front + 1 == kDepth ? 0 : front + 1;
      }
      x.unscale(sum);
      take(j, sum);
    }
  }

 private:
  // Copies group `part` of the slice of a tile.
  __device__ __forceinline__ void start(int slot, const TileRef& tile, int part) {
    const int row = lane >> 3, piece = lane & 7;
    char* const at = slots + slot * kRingSlotBytes;
    const uint32 to = shared_offset(at) + row * 128 + (piece ^ ((row & 1) * 4)) * 16;
    const int first = slice * (kGroups * 128) + part * 128;  // byte of a row
    if (tile.rows_left >= kTileRows && (kWhole || first + 128 <= row_bytes)) {
      const char* const from = tile.rows_at + lane_offset + part * 128;
#pragma unroll
      for (int i = 0; i < 4; ++i) copy_16(to + i * 512, from + i * 4 * row_bytes);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool present = tile.rows_left > 0 && first + piece * 16 < row_bytes;
        const int skipped = row + i * 4 - min(row + i * 4, tile.rows_left - 1);
        const char* const from =
            tile.rows_at + lane_offset + part * 128 + (i * 4 - skipped) * row_bytes;
        copy_16(to + i * 512, present ? from : tile.rows_at, present);
      }
    }
    if (kFormat == Format::kFp8 && lane == 0) {
      const int block = slice * kSpan + part;
      const bool present = tile.rows_left > 0 && (kWhole || block * kSliceUnit < cols);
      copy_4(shared_offset(at) + kGroupBytes, present ? tile.scales_at + block : tile.scales_at,
             present);
    }
  }
};
