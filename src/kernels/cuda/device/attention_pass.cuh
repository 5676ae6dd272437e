// One pass of the step kernel: up to 8 N query columns over the tiles of a split.
//
//   S^T [128 keys, columns] = K q     a warp takes 16 keys of the tile, all dims
//   O^T [dims, columns]    += V^T P   a warp takes 64 dims and a part of the tile's keys
// K and V go from memory straight into the registers that the tensor cores read: the sums over dims
// and over keys are permuted so that a lane's operands are 16 neighbouring bytes of a row. The
// largest scores and the weights P are exchanged through shared memory. While one of K and V is in
// use, the other's next tile is in flight.
#pragma once

#include "attention_split.cuh"
#include "head.cuh"
#include "kv_cache.cuh"
#include "mma.cuh"

namespace moray::cuda {

inline constexpr int kStepWarps = 8;
inline constexpr int kStepThreads = 32 * kStepWarps;
inline constexpr int kSlice = 64;  // dims of a value that a warp sums
inline constexpr int kSlices = (kHeadDim + kSlice - 1) / kSlice;
inline constexpr int kKeyParts = kStepWarps / kSlices;     // parts of a tile's keys
inline constexpr int kPartSteps = kTile / 16 / kKeyParts;  // products of 16 keys in a part
inline constexpr int kChunks = kHeadDim / 32;              // 16-byte pieces of a key in a lane
static_assert(kTile == 16 * kStepWarps && kStepWarps % kSlices == 0);

struct Running {  // of the keys that a lane has seen in a column; the largest score is the block's
  float largest, total;
};

template <int N>  // 8 N columns at a time
struct Shared {
  static constexpr int kColumns = 8 * N;
  static constexpr int kQueryRow = kHeadDim + 32;  // a step of 16 banks from row to row
  static constexpr int kWeightRow = kTile + 16;
  struct Loop {
    alignas(16) uint16 queries[kColumns][kQueryRow];
    alignas(16) uint16 weights[2][kColumns][kWeightRow];  // upper and lower BF16 part
    alignas(16) float largest[kColumns][kStepWarps];
    Running running[N > 1 ? 2 * N : 1][kStepThreads];  // N > 1: registers are short
    float scratch[kStepWarps][kHeadDim];               // of prepare_head
  };
  union {
    Loop loop;
    float sums[kKeyParts][kColumns][kHeadDim];
    float4 combine[kStepThreads];
  };
  alignas(16) CacheElement new_keys[kStepTokensMax][kHeadDim];
  alignas(16) CacheElement new_values[kStepTokensMax][kHeadDim];
  float new_scales[2][kStepTokensMax];  // kKvFp8: of keys, of values
  alignas(16) float totals[kColumns][kStepWarps];
  float largest[kColumns];
  float split_weight[kSplits];
  int rank;
};

// One pass: 8 N columns over the tiles [first, last) of a split.
template <int N>
class Pass {
 public:
  __device__ Pass(const AttentionStepParams& params, Shared<N>& shared, int kv_head, int position,
                  int count)
      : params_(params), shared_(shared), kv_head_(kv_head), position_(position), count_(count) {}

  // K and V of a tile as far as they are in the cache; other rows are zero.
  __device__ __forceinline__ void load_keys(int tile) {
    const int key = key_of(tile, 0), limit = position_ - key;
    const CacheElement* const from = cache_row(params_.cache.keys, key) + t() * 8;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        keys_[r][c] = CachePiece{};
        if (8 * r < limit) load_once(keys_[r][c], from + r * 8 * kHeadDim + c * 32);
      }
    }
    load_scales(params_.cache.key_scales, key, limit, key_scale_);
  }
  __device__ __forceinline__ void load_values(int tile) {
    const int key = value_key(tile, 0, 0), limit = dim() < kHeadDim ? position_ - key : 0;
    const CacheElement* const from = cache_row(params_.cache.values, key) + dim();
#pragma unroll
    for (int s = 0; s < kPartSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = s * 16 + i;
        values_[s][i] = CachePiece{};
        if (row < limit) load_once(values_[s][i], from + row * kHeadDim);
      }
    }
    // Of the keys whose weights this lane computes.
    load_scales(params_.cache.value_scales, key_of(tile, 0), position_ - key_of(tile, 0),
                value_scale_);
  }

  // Columns begin .. of the run's tokens * kGroup; column c is head c % kGroup of token
  // first_token + c / kGroup. Leaves the partial results of `split` behind, or the output if no
  // token of the step has another split.
  __device__ __forceinline__ void run(int first, int last, int split, int first_token,
                                      int run_columns, int begin, bool is_only) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        put_running(j, e, {kLowestScore, 0});
      }
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums_[j][m][e] = 0;
      }
    }
    for (int tile = first; tile < last; ++tile) {
      const bool has_new = (tile + 1) * kTile > position_;
      if (has_new) patch_keys(tile);
      float score[N][4];
      multiply_keys(score);
      if (tile + 1 < last) load_keys(tile + 1);
      if (has_new) mask(tile, first_token * kGroup + begin, score);
      share_largest(score);
      __syncthreads();
      weigh(score);
      __syncthreads();
      if (has_new) patch_values(tile);
      multiply_values();
      if (tile + 1 < last) load_values(tile + 1);
    }
    store(split, first_token * kGroup + begin, min(run_columns - begin, 8 * N), is_only);
  }

 private:
  // Lane (g, t) of the warp's tiles, as in device/mma.cuh.
  static __device__ __forceinline__ int g() {
    return threadIdx.x % 32 / 4;
  }
  static __device__ __forceinline__ int t() {
    return threadIdx.x % 4;
  }
  static __device__ __forceinline__ int warp() {
    return threadIdx.x / 32;
  }
  // First of the eight dims of a value that this lane loads.
  static __device__ __forceinline__ int dim() {
    return warp() % kSlices * kSlice + g() * 8;
  }

  __device__ __forceinline__ const CacheElement* cache_row(const void* base, int row) const {
    const long long at = static_cast<long long>(kv_head_) * params_.cache.capacity + row;
    return static_cast<const CacheElement*>(base) + at * kHeadDim;
  }
  // Of rows key and key + 8.
  __device__ __forceinline__ void load_scales(const float* scales, int key, int limit,
                                              float (&scale)[2]) const {
    if constexpr (kKvFp8) {
      const float* const from =
          scales + static_cast<long long>(kv_head_) * params_.cache.capacity + key;
      scale[0] = 0 < limit ? __ldg(from) : 0.0f;
      scale[1] = 8 < limit ? __ldg(from + 8) : 0.0f;
    }
  }
  __device__ __forceinline__ int key_of(int tile, int r) const {
    return tile * kTile + warp() * 16 + r * 8 + g();
  }
  // The key of row i of product s: a lane takes four neighbouring ones.
  __device__ __forceinline__ int value_key(int tile, int s, int i) const {
    return tile * kTile + (warp() / kSlices * kPartSteps + s) * 16 + t() * 4 + i;
  }

  // The step's own rows, scales of both included.
  __device__ __forceinline__ void patch_keys(int tile) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = key_of(tile, r) - position_;
      if (token < 0 || token >= count_) continue;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        keys_[r][c] =
            *reinterpret_cast<const CachePiece*>(&shared_.new_keys[token][c * 32 + t() * 8]);
      }
      if constexpr (kKvFp8) {
        key_scale_[r] = shared_.new_scales[0][token];
        value_scale_[r] = shared_.new_scales[1][token];
      }
    }
  }
  __device__ __forceinline__ void patch_values(int tile) {
#pragma unroll
    for (int s = 0; s < kPartSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = value_key(tile, s, i) - position_;
        if (token < 0 || token >= count_ || dim() >= kHeadDim) continue;
        values_[s][i] = *reinterpret_cast<const CachePiece*>(&shared_.new_values[token][dim()]);
      }
    }
  }

  __device__ __forceinline__ Running get_running(int j, int e) const {
    if constexpr (N == 1) return running_[e];
    return shared_.loop.running[N > 1 ? 2 * j + e : 0][threadIdx.x];
  }
  __device__ __forceinline__ void put_running(int j, int e, Running running) {
    if constexpr (N == 1) {
      running_[e] = running;
    } else {
      shared_.loop.running[2 * j + e][threadIdx.x] = running;
    }
  }

  // Two sums of alternating products halve the chain of dependent instructions.
  __device__ __forceinline__ void multiply_keys(float (&score)[N][4]) const {
    Pack16 key[2][kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      key[0][c] = widen(keys_[0][c]);
      key[1][c] = widen(keys_[1][c]);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float even[4] = {}, odd[4] = {};
      const uint16* const query = &shared_.loop.queries[8 * j + g()][t() * 8];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const Pack16 q = *reinterpret_cast<const Pack16*>(query + c * 32);
        const Pack16& upper = key[0][c];
        const Pack16& lower = key[1][c];
        mma_bf16(even, upper.word[0], lower.word[0], upper.word[1], lower.word[1], q.word[0],
                 q.word[1]);
        mma_bf16(odd, upper.word[2], lower.word[2], upper.word[3], lower.word[3], q.word[2],
                 q.word[3]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        score[j][e] = __fadd_rn(even[e], odd[e]);
        if constexpr (kKvFp8) score[j][e] = __fmul_rn(score[j][e], key_scale_[e / 2]);
      }
    }
  }

  // A column beyond the run's is masked like a later token's; nobody reads it.
  __device__ __forceinline__ void mask(int tile, int column, float (&score)[N][4]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int newest = position_ + (column + 8 * j + 2 * t() + e % 2) / kGroup;
        if (key_of(tile, e / 2) > newest) score[j][e] = masked_score();
      }
    }
  }

  __device__ __forceinline__ void share_largest(const float (&score)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float most = fmaxf(score[j][e], score[j][e + 2]);
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
        }
        if (g() == 0) shared_.loop.largest[8 * j + 2 * t() + e][warp()] = most;
      }
    }
  }

  // Scores to weights exp(score - largest so far), in shared memory as two BF16 parts that
  // together hold 16 bits; what was summed before shrinks to the new largest score.
  __device__ __forceinline__ void weigh(const float (&score)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * j + 2 * t() + e;
        Running running = get_running(j, e);
        float most = running.largest;
#pragma unroll
        for (int w = 0; w < kStepWarps; ++w) most = fmaxf(most, shared_.loop.largest[column][w]);
        const float shrink = exp2_fast(__fmul_rn(__fsub_rn(running.largest, most), kScoreScale));
        const float offset = __fmul_rn(most, -kScoreScale);
        running = {most, __fmul_rn(running.total, shrink)};
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          sums_[j][m][e] = __fmul_rn(sums_[j][m][e], shrink);
          sums_[j][m][e + 2] = __fmul_rn(sums_[j][m][e + 2], shrink);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float weight = exp2_fast(__fmaf_rn(score[j][e + 2 * r], kScoreScale, offset));
          running.total = __fadd_rn(running.total, weight);
          if constexpr (kKvFp8) weight = __fmul_rn(weight, value_scale_[r]);
          const uint16 upper = float_bf16(weight);
          const int key = warp() * 16 + r * 8 + g();
          shared_.loop.weights[0][column][key] = upper;
          shared_.loop.weights[1][column][key] = float_bf16(__fsub_rn(weight, bf16_float(upper)));
        }
        put_running(j, e, running);
      }
    }
  }

  // Row pair m of the product is dims 2 m and 2 m + 1 of the lane's eight.
  __device__ __forceinline__ void multiply_values() {
#pragma unroll
    for (int s = 0; s < kPartSteps; ++s) {
      const int key = (warp() / kSlices * kPartSteps + s) * 16 + t() * 4;
      Pack16 row[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) row[i] = widen(values_[s][i]);
      uint32 a[4][4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          a[m][e] = __byte_perm(row[e / 2 * 2].word[m], row[e / 2 * 2 + 1].word[m],
                                e % 2 == 0 ? 0x5410 : 0x7632);
        }
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const int column = 8 * j + g();
        const uint2 upper = *reinterpret_cast<const uint2*>(&shared_.loop.weights[0][column][key]);
        const uint2 lower = *reinterpret_cast<const uint2*>(&shared_.loop.weights[1][column][key]);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          mma_bf16(sums_[j][m], a[m][0], a[m][1], a[m][2], a[m][3], lower.x, lower.y);
          mma_bf16(sums_[j][m], a[m][0], a[m][1], a[m][2], a[m][3], upper.x, upper.y);
        }
      }
    }
  }

  // Adds the parts of the keys in order and writes the results of `columns` columns from `column`.
  __device__ __forceinline__ void store(int split, int column, int columns, bool is_only) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const Running running = get_running(j, e);
        float total = running.total;
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          total += __shfl_xor_sync(0xffffffffu, total, distance);
        }
        if (g() == 0) shared_.totals[8 * j + 2 * t() + e][warp()] = total;
        if (threadIdx.x < 4) shared_.largest[8 * j + 2 * t() + e] = running.largest;
      }
    }
    __syncthreads();  // everybody has left the loop whose memory the sums take
    if (dim() < kHeadDim) share_sums();
    __syncthreads();
    for (int i = threadIdx.x; i < columns * (kHeadDim / 4); i += kStepThreads) {
      const int c = i / (kHeadDim / 4), d = i % (kHeadDim / 4) * 4;
      float4 sum = {0, 0, 0, 0};
#pragma unroll
      for (int part = 0; part < kKeyParts; ++part) {
        const float4 more = *reinterpret_cast<const float4*>(&shared_.sums[part][c][d]);
        sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
      }
      float total = 0;
#pragma unroll
      for (int w = 0; w < kStepWarps; ++w) total += shared_.totals[c][w];
      if (is_only) {
        write_quad(params_, kv_head_, column + c, d, sum, total);
        continue;
      }
      const long long index = partial_index(column + c, kv_head_, split);
      *reinterpret_cast<float4*>(partial_sums(params_.partials, index) + d) = sum;
      if (d != 0) continue;
      *reinterpret_cast<float2*>(partial_stats(params_.partials, index)) = {shared_.largest[c],
                                                                            total};
    }
    __syncthreads();
  }
  __device__ __forceinline__ void share_sums() {
    float(&sums)[Shared<N>::kColumns][kHeadDim] = shared_.sums[warp() / kSlices];
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          *reinterpret_cast<float2*>(&sums[8 * j + 2 * t() + e][dim() + 2 * m]) = {
              sums_[j][m][e], sums_[j][m][e + 2]};
        }
      }
    }
  }

  const AttentionStepParams& params_;
  Shared<N>& shared_;
  const int kv_head_, position_, count_;
  CachePiece keys_[2][kChunks];
  CachePiece values_[kPartSteps][4];
  float key_scale_[2], value_scale_[2];  // kKvFp8: of the lane's two keys
  float sums_[N][4][4];  // [columns 8 j + 2 t + {0, 1}] x [dims 2 m + {0, 1}]: {00, 10, 01, 11}
  Running running_[2];   // N == 1
};

}  // namespace moray::cuda
