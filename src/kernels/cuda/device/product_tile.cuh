// A tile of a matrix product with BF16 activations: 256 weight rows by kTokens tokens, 256 threads.
//
//   sum[token][row] = sum_k x[token, k] w[row, k]
//
// mma.sync with the weights as the 16-row operand and tokens as the 8 columns. Each of the eight
// warps takes 32 rows of its own and all tokens, so that a weight is widened once a tile. Both
// operands travel through a ring of stages of 64 columns in shared memory by cp.async. In MMA step
// s of a stage lane (g, t) owns the columns 16 s + 4 t .. + 3; both operands are permuted alike, so
// that a lane reads neighbours at once and nothing is exchanged. Row g of an MMA fragment is weight
// row 2 g, row g + 8 is 2 g + 1, so that a lane's results are pairs of neighbouring rows.
//
// FP8 weights are widened to BF16 in registers, exactly. Sums are kept in units of the scale of the
// block of 128 columns at hand: at a block's border they are multiplied by the ratio of its scale
// to the next one's, at the end by the last scale. That costs one rounding a block, as adding
// scaled partial sums would, and no second set of accumulators. Scales below 2^-60 count as 2^-60.
// The order of summation of an element depends on `columns` alone.
//
// Shared memory in 16-byte chunks, placed so that neither reads nor copies meet a bank conflict:
// chunk c of a 128-byte row (tokens, BF16 weights) lies at c ^ key(row), with key = 2 (row % 4) for
// tokens and 2 (row / 2 % 4) for weights; two 64-byte rows of FP8 weights share a line, chunk c of
// row r at (r % 2 * 4 + c) ^ (r / 2 % 8).
#pragma once

#include "copy_async.cuh"
#include "mma.cuh"
#include "number.cuh"

inline constexpr int kTileWeights = 256;
inline constexpr int kTileThreads = 256;
inline constexpr int kStageColumns = 64;

template <bool kFp8, int kTokens>
struct ProductTile {
  static constexpr int kColumns8 = kTokens / 8;  // MMA columns
  // What 99 KiB of shared memory hold; two blocks fit a multiprocessor of sm_90.
  static constexpr int kStages = kFp8 ? 4 : 2;
  static constexpr int kWeightBytes = kTileWeights * kStageColumns * (kFp8 ? 1 : 2);
  static constexpr int kStageBytes = kWeightBytes + kTokens * kStageColumns * 2;
  static constexpr int kWeightChunks = kFp8 ? 4 : 8;  // of a row
  static constexpr int kWeightCopies = kTileWeights * kWeightChunks / kTileThreads;
  static constexpr int kTokenCopies = kTokens * 8 / kTileThreads;

  // The sums of a lane: [MMA column][fragment][D register], which are those of rows weight_row() +
  // 16 fragment + {0, 1} and tokens token() + 8 column + {0, 1}: {row, token}, {row, token + 1},
  // {row + 1, token}, {row + 1, token + 1}.
  using Sums = float[kColumns8][2][4];
  static __device__ int weight_row() { return threadIdx.x / 32 * 32 + threadIdx.x % 32 / 4 * 2; }
  static __device__ int token() { return threadIdx.x % 4 * 2; }

  static __device__ uint32 weight_offset(int row, int chunk) {
    if constexpr (kFp8) return row / 2 * 128 + ((row % 2 * 4 + chunk) ^ (row / 2 % 8)) * 16;
    return row * 128 + (chunk ^ (row / 2 % 4 * 2)) * 16;
  }
  static __device__ uint32 token_offset(int row, int chunk) {
    return kWeightBytes + row * 128 + (chunk ^ (row % 4 * 2)) * 16;
  }
};

// Two E4M3 codes, one in the low byte of each half, to packed BF16. A code's magnitude bits four
// places up are its value times 2^-120 (subnormals too); the multiplication is exact. The NaN codes
// become 480, and no weight of a checkpoint is one.
__device__ __forceinline__ uint32 widen_e4m3x2(uint32 codes) {
  const uint32 magnitude = (codes * 16) & 0x07f007f0u;
  uint32 pair;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;"
      : "=r"(pair)
      : "r"(magnitude), "r"(0x7b807b80u), "r"(0x80008000u));  // times 2^120
  return ((codes * 256) & 0x80008000u) | pair;
}

// The A registers of MMA step `s` of both fragments. `stage` is in shared memory.
template <bool kFp8, int kTokens>
__device__ __forceinline__ void load_weights(uint32 (&a)[2][4], const char* stage, int s) {
  using Tile = ProductTile<kFp8, kTokens>;
  const int t = threadIdx.x % 4;
  constexpr int kRowBytes = kStageColumns * (kFp8 ? 1 : 2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = Tile::weight_row() + half;
    // Sixteen rows on a chunk has the same place in its line: fragments are a constant apart.
    const char* from = stage + Tile::weight_offset(row, kFp8 ? s : 2 * s + t / 2);
    from += kFp8 ? t * 4 : t % 2 * 8;
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      if constexpr (kFp8) {
        const uint32 codes = *reinterpret_cast<const uint32*>(from + f * 16 * kRowBytes);
        a[f][half] = widen_e4m3x2(__byte_perm(codes, 0, 0x4140));
        a[f][2 + half] = widen_e4m3x2(__byte_perm(codes, 0, 0x4342));
      } else {
        const uint2 pairs = *reinterpret_cast<const uint2*>(from + f * 16 * kRowBytes);
        a[f][half] = pairs.x;
        a[f][2 + half] = pairs.y;
      }
    }
  }
}

// sums += products of the stage at `stage` in shared memory, without block scales.
template <bool kFp8, int kTokens>
__device__ __forceinline__ void multiply_stage(typename ProductTile<kFp8, kTokens>::Sums& sums,
                                               const char* stage) {
  using Tile = ProductTile<kFp8, kTokens>;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    uint32 a[2][4];
    load_weights<kFp8, kTokens>(a, stage, s);
    const char* from = stage + Tile::token_offset(g, 2 * s + t / 2) + t % 2 * 8;
#pragma unroll
    for (int j = 0; j < Tile::kColumns8; ++j) {  // eight rows on a chunk has the same place
      const uint2 b = *reinterpret_cast<const uint2*>(from + j * 8 * kStageColumns * 2);
#pragma unroll
      for (int f = 0; f < 2; ++f) {
        mma_bf16(sums[j][f], a[f][0], a[f][1], a[f][2], a[f][3], b.x, b.y);
      }
    }
  }
}

// The scales of a warp's fragments along k, one row of them for both or one for each, and the unit
// that its sums are in.
template <int kRows>
struct BlockScales {
  const float* from[kRows];
  float unit[kRows];
  float next[kRows];  // of the block to enter, loaded a block ahead

  __device__ BlockScales(const float* const (&rows)[kRows], bool any) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      from[r] = rows[r];
      unit[r] = next[r] = 1;
      if (any) next[r] = __ldg(from[r]);
    }
  }
  // Gives what the sums are to be multiplied by before the products of `block` are added.
  __device__ void enter(int block, bool last, float (&ratio)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float scale = fmaxf(next[r], 0x1p-60f);
      ratio[r] = unit[r] / scale;
      unit[r] = scale;
      if (!last) next[r] = __ldg(from[r] + block + 1);
    }
  }
};

template <int kRows, bool kFp8, int kTokens>
__device__ __forceinline__ void rescale(typename ProductTile<kFp8, kTokens>::Sums& sums,
                                        const float (&factor)[kRows]) {
#pragma unroll
  for (int j = 0; j < ProductTile<kFp8, kTokens>::kColumns8; ++j) {
#pragma unroll
    for (int f = 0; f < 2; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][f][i] *= factor[f % kRows];
    }
  }
}

// The rows of a tile: row r starts at(r) bytes after `base`, 16-byte aligned; kAbsent: of zeros.
// Weight rows hold zeros in [columns, a multiple of 64), token rows are not read beyond `columns`.
inline constexpr uint32 kAbsent = ~0u;
template <typename At>
struct TileRows {
  const void* base;
  At at;
};
template <typename At>
TileRows(const void*, At) -> TileRows<At>;

// `scales`: of the blocks along k of this warp's rows, or of each of its fragments (FP8 only).
// `idle`: nobody wants the sums of this warp, it only copies. `shared` holds kStages stages.
template <bool kFp8, int kTokens, int kScaleRows, typename WeightAt, typename TokenAt>
__device__ __forceinline__ void product_tile(typename ProductTile<kFp8, kTokens>::Sums& sums,
                                             const TileRows<WeightAt>& weights,
                                             const TileRows<TokenAt>& tokens, int columns,
                                             const float* const (&scale_rows)[kScaleRows],
                                             bool idle, char* shared) {
  using Tile = ProductTile<kFp8, kTokens>;
  const uint32 base = shared_address(shared);
  const int stages = (columns + kStageColumns - 1) / kStageColumns;

  // A thread copies one chunk of every kTileThreads / chunks-th row.
  const int weight_row = threadIdx.x / Tile::kWeightChunks;
  const int weight_chunk = threadIdx.x % Tile::kWeightChunks;
  const int token_row = threadIdx.x / 8, token_chunk = threadIdx.x % 8;
  const uint32 weight_to = base + Tile::weight_offset(weight_row, weight_chunk);
  const uint32 token_to = base + Tile::token_offset(token_row, token_chunk);
  uint32 token_from[Tile::kTokenCopies];
  constexpr int kWeightStep = kTileThreads / Tile::kWeightChunks, kTokenStep = kTileThreads / 8;
#pragma unroll
  for (int i = 0; i < Tile::kTokenCopies; ++i) {
    token_from[i] = tokens.at(token_row + i * kTokenStep);
  }
  const auto copy_stage = [&](int stage) {
    if (stage < stages) {
      const uint32 slot = stage % Tile::kStages * Tile::kStageBytes;
      const char* from = static_cast<const char*>(weights.base) + weight_chunk * 16 +
                         stage * (Tile::kWeightChunks * 16);
#pragma unroll
      for (int i = 0; i < Tile::kWeightCopies; ++i) {
        const uint32 row = weights.at(weight_row + i * kWeightStep);
        const bool there = row != kAbsent;
        copy_16(weight_to + slot + i * kWeightStep * Tile::kWeightChunks * 16,
                from + (there ? row : 0), there ? 16 : 0);
      }
      const int left = (columns - stage * kStageColumns - token_chunk * 8) * 2;
      const int bytes = min(max(left, 0), 16);
      from = static_cast<const char*>(tokens.base) + token_chunk * 16 + stage * kStageColumns * 2;
#pragma unroll
      for (int i = 0; i < Tile::kTokenCopies; ++i) {
        const bool there = token_from[i] != kAbsent;
        copy_16(token_to + slot + i * kTokenStep * 128, from + (there ? token_from[i] : 0),
                there ? bytes : 0);
      }
    }
    copy_commit();
  };

#pragma unroll
  for (int i = 0; i < Tile::kStages - 1; ++i) copy_stage(i);
  BlockScales<kScaleRows> scales(scale_rows, kFp8 && !idle);
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    copy_wait<Tile::kStages - 2>();
    __syncthreads();
    copy_stage(stage + Tile::kStages - 1);
    if (idle) continue;
    if constexpr (kFp8) {
      if (stage % 2 == 0) {
        float ratio[kScaleRows];
        scales.enter(stage / 2, stage + 2 >= stages, ratio);
        rescale<kScaleRows, kFp8, kTokens>(sums, ratio);
      }
    }
    multiply_stage<kFp8, kTokens>(sums, shared + stage % Tile::kStages * Tile::kStageBytes);
  }
  if constexpr (kFp8) rescale<kScaleRows, kFp8, kTokens>(sums, scales.unit);
  copy_wait<0>();
}
