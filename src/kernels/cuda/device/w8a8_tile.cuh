// A tile of a W8A8 product: 128 activation rows times 128 weight rows, whatever unit multiplies.
//
// Both main loops (w8a8_wgmma.cuh, w8a8_mma.cuh) leave the sums of a tile in the same registers:
// warp w of the 8 that multiply, lane 4 g + t, holds
//   sum[4 j + 2 h + e] = y[16 w + g + 8 h, 8 j + 2 t + e],  j in 0..15, h and e in 0..1
// so one epilogue serves every architecture. Columns 0..63 (j < 8) come from `low` weight rows on,
// 64..127 from `high` on: two neighbouring halves, or the gates and ups of the same 64 channels.
//
// A kernel is a Work (which tiles there are, where their operands lie) and an Epilogue (what
// becomes of the sums). A block walks items blockIdx.x / blocks, + gridDim.x / blocks, ...; an item
// has Work::kPasses tiles. With clusters of two blocks the pair takes one item of two neighbouring
// tiles that share the activation rows, each copying one half of them to both.
#pragma once

#include "../w8a8_params.h"
#include "number.cuh"

using namespace moray::cuda;

struct Tile {
  int x_row;               // first activation row
  int rows;                // to be written, 0..128; fewer than 128 at the end of a segment
  int low, high;           // weight rows, see above
  int plane;               // expert, 0 if there is only one
  int target;              // of several matrices
  const float* low_scale;  // of the weights in slice 0; the next slice's stands beside it
  const float* high_scale;
};

struct Cursor {
  int item, pass;
};

__device__ __forceinline__ void prefetch_l1(const void* at) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}
__device__ __forceinline__ void prefetch_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

template <class Work>
__device__ __forceinline__ Cursor after(Cursor cursor, int stride) {
  if (cursor.pass + 1 < Work::kPasses) return {cursor.item, cursor.pass + 1};
  return {cursor.item + stride, 0};
}

// What one slice's sums are multiplied with: rows g and g + 8, low and high columns.
struct SliceScales {
  float row0, row8, low, high;
};
// Where those of a lane's next slice stand. Rows beyond the last are read as the last.
struct ScaleCursor {
  const float *row0, *row8, *low, *high;

  __device__ ScaleCursor(const QuantisedRows& x, const Tile& tile, int row)
      : row0(x.scales + min(tile.x_row + row, x.rows - 1)),
        row8(x.scales + min(tile.x_row + row + 8, x.rows - 1)),
        low(tile.low_scale),
        high(tile.high_scale) {}
  __device__ SliceScales load() const {
    return {__ldg(row0), __ldg(row8), __ldg(low), __ldg(high)};
  }
  __device__ void advance(int scale_stride) {
    row0 += scale_stride;
    row8 += scale_stride;
    ++low;
    ++high;
  }
};

// sum += part, scaled.
__device__ __forceinline__ void promote(float (&sum)[64], const float (&part)[64],
                                        const SliceScales& scales) {
  const float factors[4] = {scales.row0 * scales.low, scales.row8 * scales.low,
                            scales.row0 * scales.high, scales.row8 * scales.high};
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    sum[i] = fmaf(part[i], factors[(i / 32) * 2 + (i / 2) % 2], sum[i]);
  }
}
