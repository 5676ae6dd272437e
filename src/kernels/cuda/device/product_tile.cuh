// A tile of a matrix product with BF16 activations: 128 weight rows by kTokens tokens, 256 threads.
//
//   sum[token][row] = sum_k x[token, k] w[row, k]
//
// mma.sync with the weights as the 16-row operand and tokens as the 8 columns. Eight warps, four
// along the rows by two along the tokens. Both operands travel through a ring of stages of 64
// columns in shared memory by cp.async. Within a stage lane (g, t) owns the columns 16 t ..
// 16 t + 15, 4 of them in each of the stage's four MMA steps; both operands are permuted alike, so
// a lane reads 16 neighbouring bytes at once and nothing is exchanged. The A row g of a fragment is
// weight row 2 g, row g + 8 is 2 g + 1, so a lane's results are pairs of neighbouring rows.
//
// FP8 weights are widened to BF16 in registers, exactly; a stage's sum is multiplied by its block's
// scale and added in FP32. The order of summation of an element depends on `columns` alone.
//
// Shared memory, 16-byte chunks, no bank conflicts in reads and writes: BF16 row r of 128 bytes
// keeps chunk c at c ^ key(r), key r % 8 for tokens and r / 2 % 8 for weights; an FP8 row has 64
// bytes, rows 2 i and 2 i + 1 share a line, and which comes first alternates with i.
#pragma once

#include "copy_async.cuh"
#include "mma.cuh"
#include "number.cuh"

inline constexpr int kTileWeights = 128;
inline constexpr int kTileThreads = 256;
inline constexpr int kStageColumns = 64;

template <bool kFp8, int kTokens>
struct ProductTile {
  static constexpr int kColumns8 = kTokens / 16;  // MMA columns of a warp
  static constexpr int kStages = kFp8 ? 4 : 3;
  static constexpr int kWeightBytes = kTileWeights * kStageColumns * (kFp8 ? 1 : 2);
  static constexpr int kStageBytes = kWeightBytes + kTokens * kStageColumns * 2;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static constexpr int kWeightCopies = kWeightBytes / 16 / kTileThreads;  // a thread and stage
  static constexpr int kTokenCopies = kTokens * 8 / kTileThreads;
  static constexpr int kWeightChunks = kFp8 ? 4 : 8;  // of a row

  // The sums of a lane: [MMA column][fragment][D register].
  using Sums = float[kColumns8][2][4];
  // Which element a lane's sums are: rows weight_row() + 16 fragment + {0, 1} of the tile, tokens
  // token() + 8 column + {0, 1}. D registers: {row, token}, {row, token + 1}, {row + 1, token},
  // {row + 1, token + 1}.
  static __device__ int weight_row() {
    return threadIdx.x / 32 % 4 * 32 + threadIdx.x % 32 / 4 * 2;
  }
  static __device__ int token() { return threadIdx.x / 128 * (kTokens / 2) + threadIdx.x % 4 * 2; }

  static __device__ uint32 weight_offset(int row, int chunk) {
    if constexpr (kFp8) return row / 2 * 128 + ((row ^ row / 2) & 1) * 64 + chunk * 16;
    return row * 128 + (chunk ^ (row / 2 & 7)) * 16;
  }
  static __device__ uint32 token_offset(int row, int chunk) {
    return kWeightBytes + row * 128 + (chunk ^ (row & 7)) * 16;
  }
};

// Two E4M3 codes, one in the low byte of each half, to packed BF16. A code's magnitude bits four
// places up are the value times 2^-120 (subnormals too); the multiplication is exact.
__device__ __forceinline__ uint32 widen_e4m3x2(uint32 codes) {
  const uint32 magnitude = (codes * 16) & 0x07f007f0u;
  const uint32 factor = ((codes * 256) & 0x80008000u) | 0x7b807b80u;  // +-2^120
  uint32 pair;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(magnitude), "r"(factor), "r"(0x80008000u));
  return pair;
}
// The codes of a word, lower two and upper two, to packed BF16. A NaN code becomes 480, which no
// published weight holds.
__device__ __forceinline__ void widen_e4m3x4(uint32 word, uint32& lower, uint32& upper) {
  lower = widen_e4m3x2(__byte_perm(word, 0, 0x4140));
  upper = widen_e4m3x2(__byte_perm(word, 0, 0x4342));
}

// One stage from shared memory at `stage`: sums += products, times scale[fragment] for FP8.
template <bool kFp8, int kTokens>
__device__ __forceinline__ void multiply_stage(typename ProductTile<kFp8, kTokens>::Sums& sums,
                                               uint32 stage, const float (&scale)[2]) {
  using Tile = ProductTile<kFp8, kTokens>;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32 a[2][4][4];  // [fragment][MMA step][A register]
#pragma unroll
  for (int f = 0; f < 2; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Tile::weight_row() + 16 * f + half;
      if constexpr (kFp8) {
        const Pack16 codes = load_shared_16(stage + Tile::weight_offset(row, t));
#pragma unroll
        for (int s = 0; s < 4; ++s) widen_e4m3x4(codes.word[s], a[f][s][half], a[f][s][2 + half]);
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const Pack16 pack = load_shared_16(stage + Tile::weight_offset(row, 2 * t + i));
          a[f][2 * i][half] = pack.word[0];
          a[f][2 * i][2 + half] = pack.word[1];
          a[f][2 * i + 1][half] = pack.word[2];
          a[f][2 * i + 1][2 + half] = pack.word[3];
        }
      }
    }
  }
  const int token = threadIdx.x / 128 * (kTokens / 2) + g;
#pragma unroll
  for (int j = 0; j < Tile::kColumns8; ++j) {
    const Pack16 x0 = load_shared_16(stage + Tile::token_offset(token + 8 * j, 2 * t));
    const Pack16 x1 = load_shared_16(stage + Tile::token_offset(token + 8 * j, 2 * t + 1));
    const uint32 b[4][2] = {{x0.word[0], x0.word[1]},
                            {x0.word[2], x0.word[3]},
                            {x1.word[0], x1.word[1]},
                            {x1.word[2], x1.word[3]}};
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      if constexpr (kFp8) {
        float part[4] = {0, 0, 0, 0};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          mma_bf16(part, a[f][s][0], a[f][s][1], a[f][s][2], a[f][s][3], b[s][0], b[s][1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[j][f][i] = fmaf(part[i], scale[f], sums[j][f][i]);
      } else {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          mma_bf16(sums[j][f], a[f][s][0], a[f][s][1], a[f][s][2], a[f][s][3], b[s][0], b[s][1]);
        }
      }
    }
  }
}

// weight_at(row) and token_at(row) give the start of a row of the tile, 16-byte aligned, or null
// for a row of zeros; weight rows hold zeros in [columns, a multiple of 64), token rows are not
// read beyond `columns`. scales[f]: the block scales along k of fragment f's rows (FP8 only).
// `shared`: kSharedBytes, free to be overwritten. Ends with no copy in flight.
template <bool kFp8, int kTokens, typename WeightAt, typename TokenAt>
__device__ __forceinline__ void product_tile(typename ProductTile<kFp8, kTokens>::Sums& sums,
                                             WeightAt weight_at, TokenAt token_at, int columns,
                                             const float* scales_0, const float* scales_1,
                                             char* shared) {
  using Tile = ProductTile<kFp8, kTokens>;
  const uint32 base = shared_address(shared);
  const int stages = (columns + kStageColumns - 1) / kStageColumns;

  const char* weight_from[Tile::kWeightCopies];
  const char* token_from[Tile::kTokenCopies];
  uint32 weight_to[Tile::kWeightCopies], token_to[Tile::kTokenCopies];
  bool weight_there[Tile::kWeightCopies], token_there[Tile::kTokenCopies];
  const int token_chunk = threadIdx.x % 8;
#pragma unroll
  for (int i = 0; i < Tile::kWeightCopies; ++i) {
    const int index = threadIdx.x + i * kTileThreads;
    const int row = index / Tile::kWeightChunks, chunk = index % Tile::kWeightChunks;
    const void* from = weight_at(row);
    weight_there[i] = from != nullptr;
    weight_from[i] = static_cast<const char*>(from) + chunk * 16;
    weight_to[i] = base + Tile::weight_offset(row, chunk);
  }
#pragma unroll
  for (int i = 0; i < Tile::kTokenCopies; ++i) {
    const int row = threadIdx.x / 8 + i * (kTileThreads / 8);
    const void* from = token_at(row);
    token_there[i] = from != nullptr;
    token_from[i] = static_cast<const char*>(from) + token_chunk * 16;
    token_to[i] = base + Tile::token_offset(row, token_chunk);
  }
  const auto copy_stage = [&](int stage) {
    if (stage < stages) {
      const uint32 slot = stage % Tile::kStages * Tile::kStageBytes;
#pragma unroll
      for (int i = 0; i < Tile::kWeightCopies; ++i) {
        copy_16(weight_to[i] + slot, weight_from[i] + stage * (Tile::kWeightChunks * 16),
                weight_there[i] ? 16 : 0);
      }
      const int bytes_left = (columns - stage * kStageColumns) * 2 - token_chunk * 16;
      const int bytes = min(max(bytes_left, 0), 16);
#pragma unroll
      for (int i = 0; i < Tile::kTokenCopies; ++i) {
        copy_16(token_to[i] + slot, token_from[i] + stage * (kStageColumns * 2),
                token_there[i] ? bytes : 0);
      }
    }
    copy_commit();
  };

#pragma unroll
  for (int i = 0; i < Tile::kStages - 1; ++i) copy_stage(i);
  float scale[2] = {1, 1};
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    if constexpr (kFp8) {
      scale[0] = __ldg(scales_0 + stage / 2);
      scale[1] = __ldg(scales_1 + stage / 2);
    }
    copy_wait<Tile::kStages - 2>();
    __syncthreads();
    copy_stage(stage + Tile::kStages - 1);
    multiply_stage<kFp8, kTokens>(sums, base + stage % Tile::kStages * Tile::kStageBytes, scale);
  }
  copy_wait<0>();
}
