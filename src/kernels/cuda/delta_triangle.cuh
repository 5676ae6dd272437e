// Inverse of the unit lower triangular I + L of a chunk, by blocks in shared memory:
// [A 0; C B]^-1 = [A^-1 0; -B^-1 C A^-1 B^-1], from blocks of 16 on the diagonal up to all 64.
//
// Blocks of 16 by 16 above the diagonal are neither written nor read. Products take F16 operands
// and sum in FP32; they are transposed, sixteen columns a warp, so that C A^-1 stays in registers.
#pragma once

#include "src/kernels/cuda/delta_operand.cuh"
#include "src/kernels/cuda/delta_prefill.cuh"

namespace moray::cuda {

struct Triangle {
  alignas(16) uint16 lower[kChunk * kChunk];         // L, F16 in the order of tile_offset
  alignas(16) uint16 inverse[kChunk * kChunk];       // (I + L)^-1, the same
  alignas(16) float diagonals[kChunk / 16][16][16];  // L's blocks on the diagonal, not rounded
};

// Byte offset of an element.
__device__ __forceinline__ uint32 triangle_offset(int row, int column) {
  return tile_offset<kChunk>(row, column / 8) + column % 8 * 2;
}
// The elements of an even column and the next one.
__device__ __forceinline__ uint32* pair_at(uint16* tile, int row, int column) {
  return reinterpret_cast<uint32*>(tile + triangle_offset(row, column) / 2);
}
__device__ __forceinline__ void store_inverse(Triangle& triangle, int row, int column, float x) {
  triangle.inverse[triangle_offset(row, column) / 2] = static_cast<uint16>(float_f16x2(x, 0.0f));
}

// Column `column` of the inverse of diagonal block `block`, by forward substitution. A thread.
__device__ void invert_diagonal(Triangle& triangle, int block, int column) {
  const float(&lower)[16][16] = triangle.diagonals[block];
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float even = i == column ? 1.0f : 0.0f, odd = 0.0f;
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&lower[i][j]);
      even = fmaf(-four.x, x[j], even);
      if (j + 1 < i) odd = fmaf(-four.y, x[j + 1], odd);
      if (j + 2 < i) even = fmaf(-four.z, x[j + 2], even);
      if (j + 3 < i) odd = fmaf(-four.w, x[j + 3], odd);
    }
    x[i] = even + odd;
    store_inverse(triangle, 16 * block + i, 16 * block + column, x[i]);
  }
}

// Sixteen columns, from `column` on, of -B^-1 C A^-1, where A is the block of kSize from `first` on
// and B the next one; both inverses are there. A warp.
template <int kSize>
__device__ void invert_below(Triangle& triangle, int first, int column, int lane) {
  constexpr int kSteps = kSize / 16, kBlocks = kSize / 8;
  const uint32 lower = shared_address(triangle.lower), inverse = shared_address(triangle.inverse);
  const int below = first + kSize;
  const int row = lane / 16 * 8 + lane % 8, piece = lane / 8 % 2;
  Block x[kBlocks], y[kBlocks];  // (C A^-1)^T, (B^-1 C A^-1)^T
  clear_blocks(x);
  clear_blocks(y);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    if (first + 16 * k < column) continue;  // A^-1 is zero there
    Operand a;
    load_blocks_transposed(a,
                           inverse + tile_offset<kChunk>(first + 16 * k + row, column / 8 + piece));
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      uint32 c[4];
      load_blocks(c,
                  lower + tile_offset<kChunk>(below + n * 8 + row, (first + 16 * k) / 8 + piece));
      mma_f16(x[n], a[0], a[1], a[2], a[3], c[0], c[1]);
      mma_f16(x[n + 1], a[0], a[1], a[2], a[3], c[2], c[3]);
    }
  }
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    Operand a;
    pack_blocks(x[2 * k], x[2 * k + 1], a);
#pragma unroll
    for (int n = 2 * k; n < kBlocks; n += 2) {
      uint32 b[4];
      load_blocks(b,
                  inverse + tile_offset<kChunk>(below + n * 8 + row, (below + 16 * k) / 8 + piece));
      mma_f16(y[n], a[0], a[1], a[2], a[3], b[0], b[1]);
      mma_f16(y[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store_inverse(triangle, below + n * 8 + lane % 4 * 2 + i % 2, column + lane / 4 + i / 2 * 8,
                    -y[n][i]);
    }
  }
}

}  // namespace moray::cuda
