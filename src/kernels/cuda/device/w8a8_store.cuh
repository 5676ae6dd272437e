// What becomes of a tile's sums: rows of BF16 or FP32, or quantised SiLU products.
//
// The four lanes of a row first exchange words, so that each writes 16 neighbouring bytes and the
// four together 64: whole sectors, whatever the row.
#pragma once

#include "quad.cuh"
#include "w8a8_tile.cuh"

// Piece `group` of a row in memory order: this lane's 8 columns 8 (4 group + t) .. + 7.
__device__ __forceinline__ int piece_column(int group) {
  return 8 * (4 * group + int(threadIdx.x % 4));
}

// out[8 j + ..] of one row, j in 0..15; columns beyond `columns` and rows that are not valid are
// left alone.
__device__ __forceinline__ void store_row_bf16(const float (&sum)[64], int half, uint16* out,
                                               int columns, bool valid) {
#pragma unroll
  for (int group = 0; group < 4; ++group) {
    uint32 word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * (4 * group + i) + 2 * half;
      word[i] = float_bf16x2(sum[at], sum[at + 1]);
    }
    transpose_quad(word);
    const int column = piece_column(group);
    if (valid && column < columns) {
      *reinterpret_cast<Pack16*>(out + column) = {word[0], word[1], word[2], word[3]};
    }
  }
}

// What store_row_bf16 would overwrite, to be added: all pieces are asked for before any is used.
__device__ __forceinline__ void load_row_bf16(Pack16 (&old)[4], const uint16* out, int columns,
                                              bool valid) {
#pragma unroll
  for (int group = 0; group < 4; ++group) {
    const int column = piece_column(group);
    old[group] = {};
    if (valid && column < columns) old[group] = *reinterpret_cast<const Pack16*>(out + column);
  }
}
// sum += old, which is exchanged the way stores are, but backwards.
__device__ __forceinline__ void add_row_bf16(float (&sum)[64], int half, Pack16 (&old)[4]) {
#pragma unroll
  for (int group = 0; group < 4; ++group) {
    transpose_quad(old[group].word);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * (4 * group + i) + 2 * half;
      sum[at] += bf16_low(old[group].word[i]);
      sum[at + 1] += bf16_high(old[group].word[i]);
    }
  }
}

__device__ __forceinline__ void store_row_f32(const float (&sum)[64], int half, float* out,
                                              int columns, bool valid) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    if (valid && 8 * j < columns) {
      *reinterpret_cast<float2*>(out + 8 * j + 2 * t) =
          make_float2(sum[4 * j + 2 * half], sum[4 * j + 2 * half + 1]);
    }
  }
}

__device__ __forceinline__ float silu_times(float gate, float up) {
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

// One row of 128 quantised values from two tiles' 64: first[2 j + e] and second[2 j + e] are
// columns 8 j + 2 t + e of the lower and upper half. Returns the row's scale.
__device__ __forceinline__ float store_row_quantised(const float (&first)[16],
                                                     const float (&second)[16], uint8* out,
                                                     bool valid) {
  float largest = 1e-30f;  // keeps a row of zeros finite
#pragma unroll
  for (int i = 0; i < 16; ++i) largest = fmaxf(largest, fmaxf(fabsf(first[i]), fabsf(second[i])));
  largest = max_quad(largest);
  const float inverse = 448.0f / largest;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32 word[4];  // word i: this lane's two columns of groups j = 2 i and 2 i + 1
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&value)[16] = half == 0 ? first : second;
      word[i] = float_e4m3x2(value[4 * i] * inverse, value[4 * i + 1] * inverse) |
                uint32(float_e4m3x2(value[4 * i + 2] * inverse, value[4 * i + 3] * inverse)) << 16;
    }
    transpose_quad(word);
    const Pack16 piece{__byte_perm(word[0], word[1], 0x5410), __byte_perm(word[2], word[3], 0x5410),
                       __byte_perm(word[0], word[1], 0x7632),
                       __byte_perm(word[2], word[3], 0x7632)};
    if (valid) *reinterpret_cast<Pack16*>(out + 64 * half + 16 * (threadIdx.x % 4)) = piece;
  }
  return largest * (1.0f / 448.0f);
}
