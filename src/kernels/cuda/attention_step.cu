// attention_step: norm, rotate and append 1..16 tokens, attend over the cache, gate; one kernel.
//
// A block owns one split of one KV head: consecutive tiles of 128 keys. Its eight query heads (or
// heads of several tokens) are the eight columns of the tensor-core tiles, so that each byte of the
// cache is read once for all of them, straight into registers:
//   S^T [128 keys, columns] = K q     a warp takes 16 keys of the tile, all dims
//   O^T [dims, columns]    += V^T P   a warp takes 64 dims and a part of the tile's keys
// with the softmax in between, on-line over tiles, its largest score exchanged through shared
// memory. While one of K and V is used the other's next tile is in flight: at least 64 KiB a
// multiprocessor at head_dim 256, about twice what covers the latency of an H200's memory.
// The partial results of splits are combined by the blocks that arrive last (finish_columns).
//
// Invariant: a column's sums depend on its token's position alone. Which tiles form a split is a
// function of the position; tokens of a step that differ there are taken in separate runs.
// Everything below Step.position in the cache, and Step itself, was written by earlier steps, whose
// launches have finished: it is read before wait_for_previous().
#include "constants.cuh"
#include "attention_params.h"
#include "device/grid.cuh"
#include "device/head.cuh"
#include "device/mma.cuh"

namespace moray::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kTile = kAttentionTileKeys;
constexpr int kGroup = kHeads / kKvHeads;
constexpr int kSplits = attention_splits(kMultiprocessors, kKvHeads);
constexpr int kQueryStride = kHeadDim * (kHasGate ? 2 : 1);  // floats from head to head
constexpr int kSlice = 64;                                   // dims of a value that a warp sums
constexpr int kSlices = (kHeadDim + kSlice - 1) / kSlice;
constexpr int kKeyParts = kWarps / kSlices;               // parts of a tile's keys
constexpr int kPartSteps = kTile / 16 / kKeyParts;        // products of 16 keys in a part
constexpr int kChunks = kHeadDim / 32;                    // 16-byte pieces of a key in a lane
constexpr int kColumnsMax = kStepTokensMax * kGroup;
constexpr float kLowest = -1e30f;                         // below every score, yet finite
static_assert(kTile == 16 * kWarps && kWarps % kSlices == 0);

// exp2 of scaled scores is exp of scores times head_dim^-1/2.
constexpr float root(float x) {
  float r = x;
  for (int i = 0; i < 40; ++i) r = 0.5f * (r + x / r);
  return r;
}
constexpr float kScale = 1.44269504f / root(float(kHeadDim));

__device__ __forceinline__ float exp2_fast(float x) {  // within 2^-22, relative
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Read once: not kept in the first-level cache.
__device__ __forceinline__ Pack16 load_once(const uint16* at) {
  Pack16 p;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(p.word[0]), "=r"(p.word[1]), "=r"(p.word[2]), "=r"(p.word[3])
               : "l"(at));
  return p;
}

// What other blocks wrote in this launch: past the first-level cache.
__device__ __forceinline__ float4 load_shared_work(const float* at) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(at));
  return v;
}
__device__ __forceinline__ float2 load_shared_pair(const float* at) {
  float2 v;
  asm volatile("ld.global.cg.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(at));
  return v;
}

// Partial results: {largest score, total} of [column, kv_head, split], then its sums [.., dim].
__device__ __forceinline__ long long partial_index(int column, int kv_head, int split) {
  return (static_cast<long long>(column) * kKvHeads + kv_head) * kSplits + split;
}
__device__ __forceinline__ float* partial_stats(float* partials, long long index) {
  return partials + 2 * index;
}
__device__ __forceinline__ float* partial_sums(float* partials, long long index) {
  constexpr long long kStats = 2LL * kColumnsMax * kKvHeads * kSplits;
  return partials + kStats + index * kHeadDim;
}

__device__ __forceinline__ int tiles_of(int position) { return position / kTile + 1; }
__device__ __forceinline__ int split_tiles_of(int position) {
  return attention_split_tiles(tiles_of(position), kSplits);
}
__device__ __forceinline__ int splits_of(int position) {
  const int per_split = split_tiles_of(position);
  return (tiles_of(position) + per_split - 1) / per_split;
}

template <int N>  // 8 N columns at a time
struct Shared {
  static constexpr int kColumns = 8 * N;
  static constexpr int kQueryRow = kHeadDim + 32;  // a step of 16 banks from row to row
  static constexpr int kWeightRow = kTile + 16;
  struct Loop {
    uint16 queries[kColumns][kQueryRow];
    uint16 weights[2][kColumns][kWeightRow];  // upper and lower BF16 part
    float largest[kWarps][kColumns];
    float scratch[kWarps][kHeadDim];  // of prepare_head
  };
  union {
    Loop loop;
    float sums[kColumns][kHeadDim];
    float4 combine[kThreads];
  };
  float totals[kWarps][kColumns];
  float split_weight[kSplits];
  uint16 new_keys[kStepTokensMax][kHeadDim];
  uint16 new_values[kStepTokensMax][kHeadDim];
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
    const uint16* const base = cache_row(params_.cache.keys, 0);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = key_of(tile, r);
      const uint16* const from = base + static_cast<long long>(key) * kHeadDim + t() * 8;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        keys_[r][c] = key < position_ ? load_once(from + c * 32) : Pack16{};
      }
    }
  }
  __device__ __forceinline__ void load_values(int tile) {
    const uint16* const base = cache_row(params_.cache.values, 0);
#pragma unroll
    for (int s = 0; s < kPartSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = value_key(tile, s, i);
        const bool wanted = key < position_ && dim() < kHeadDim;
        values_[s][i] = wanted
                            ? load_once(base + static_cast<long long>(key) * kHeadDim + dim())
                            : Pack16{};
      }
    }
  }

  // Columns begin .. of the run's tokens * kGroup; column c is head c % kGroup of token
  // first_token + c / kGroup. Leaves the partial results of `split` behind.
  __device__ __forceinline__ void run(int first, int last, int split, int first_token,
                                      int run_columns, int begin) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        largest_[j][e] = kLowest;
        total_[j][e] = 0;
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
    store(split, first_token * kGroup + begin, min(run_columns - begin, 8 * N));
  }

 private:
  // Lane (g, t) of the warp's tiles, as in device/mma.cuh.
  static __device__ __forceinline__ int g() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int t() { return threadIdx.x % 4; }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32; }
  // First of the eight dims of a value that this lane loads.
  static __device__ __forceinline__ int dim() { return warp() % kSlices * kSlice + g() * 8; }

  __device__ __forceinline__ const uint16* cache_row(const void* base, int row) const {
    const long long at = static_cast<long long>(kv_head_) * params_.cache.capacity + row;
    return static_cast<const uint16*>(base) + at * kHeadDim;
  }
  __device__ __forceinline__ int key_of(int tile, int r) const {
    return tile * kTile + warp() * 16 + r * 8 + g();
  }
  // The key of row i of product s: a lane takes four neighbouring ones.
  __device__ __forceinline__ int value_key(int tile, int s, int i) const {
    return tile * kTile + (warp() / kSlices * kPartSteps + s) * 16 + t() * 4 + i;
  }

  __device__ __forceinline__ void patch_keys(int tile) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = key_of(tile, r) - position_;
      if (token < 0 || token >= count_) continue;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        keys_[r][c] =
            *reinterpret_cast<const Pack16*>(&shared_.new_keys[token][c * 32 + t() * 8]);
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
        values_[s][i] = *reinterpret_cast<const Pack16*>(&shared_.new_values[token][dim()]);
      }
    }
  }

  // Two sums of alternating products halve the chain of dependent instructions.
  __device__ __forceinline__ void multiply_keys(float (&score)[N][4]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float even[4] = {}, odd[4] = {};
      const uint16* const query = &shared_.loop.queries[8 * j + g()][t() * 8];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const Pack16 q = *reinterpret_cast<const Pack16*>(query + c * 32);
        const Pack16& upper = keys_[0][c];
        const Pack16& lower = keys_[1][c];
        mma_bf16(even, upper.word[0], lower.word[0], upper.word[1], lower.word[1], q.word[0],
                 q.word[1]);
        mma_bf16(odd, upper.word[2], lower.word[2], upper.word[3], lower.word[3], q.word[2],
                 q.word[3]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) score[j][e] = __fadd_rn(even[e], odd[e]);
    }
  }

  // A column beyond the run's is masked like a later token's; nobody reads it.
  __device__ __forceinline__ void mask(int tile, int column, float (&score)[N][4]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int newest = position_ + (column + 8 * j + 2 * t() + e % 2) / kGroup;
        if (key_of(tile, e / 2) > newest) score[j][e] = bits_float(0xff800000u);  // -inf: weight 0
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
        if (g() == 0) shared_.loop.largest[warp()][8 * j + 2 * t() + e] = most;
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
        float most = largest_[j][e];
#pragma unroll
        for (int w = 0; w < kWarps; ++w) most = fmaxf(most, shared_.loop.largest[w][column]);
        const float shrink = exp2_fast(__fmul_rn(__fsub_rn(largest_[j][e], most), kScale));
        const float offset = __fmul_rn(most, -kScale);
        largest_[j][e] = most;
        total_[j][e] = __fmul_rn(total_[j][e], shrink);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          sums_[j][m][e] = __fmul_rn(sums_[j][m][e], shrink);
          sums_[j][m][e + 2] = __fmul_rn(sums_[j][m][e + 2], shrink);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float weight = exp2_fast(__fmaf_rn(score[j][e + 2 * r], kScale, offset));
          total_[j][e] = __fadd_rn(total_[j][e], weight);
          const uint16 upper = float_bf16(weight);
          const int key = warp() * 16 + r * 8 + g();
          shared_.loop.weights[0][column][key] = upper;
          shared_.loop.weights[1][column][key] = float_bf16(__fsub_rn(weight, bf16_float(upper)));
        }
      }
    }
  }

  // Row pair m of the product is dims 2 m and 2 m + 1 of the lane's eight.
  __device__ __forceinline__ void multiply_values() {
#pragma unroll
    for (int s = 0; s < kPartSteps; ++s) {
      const int key = (warp() / kSlices * kPartSteps + s) * 16 + t() * 4;
      uint32 a[4][4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          a[m][e] = __byte_perm(values_[s][e / 2 * 2].word[m], values_[s][e / 2 * 2 + 1].word[m],
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

  // Adds the parts of the keys in order and writes `columns` partial results from `column` on.
  __device__ __forceinline__ void store(int split, int column, int columns) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float total = total_[j][e];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          total += __shfl_xor_sync(0xffffffffu, total, distance);
        }
        if (g() == 0) shared_.totals[warp()][8 * j + 2 * t() + e] = total;
      }
    }
    for (int part = 0; part < kKeyParts; ++part) {
      __syncthreads();  // also: everybody has left the loop whose memory the sums take
      if (warp() / kSlices == part && dim() < kHeadDim) add_part(part == 0);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < columns * (kHeadDim / 4); i += kThreads) {
      const int c = i / (kHeadDim / 4), d = i % (kHeadDim / 4) * 4;
      const long long index = partial_index(column + c, kv_head_, split);
      *reinterpret_cast<float4*>(partial_sums(params_.partials, index) + d) =
          *reinterpret_cast<const float4*>(&shared_.sums[c][d]);
    }
    if (threadIdx.x < 4) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int c = 8 * j + 2 * t() + e;
          if (c >= columns) continue;
          float total = 0;
          for (int w = 0; w < kWarps; ++w) total += shared_.totals[w][c];
          float* const stats =
              partial_stats(params_.partials, partial_index(column + c, kv_head_, split));
          stats[0] = largest_[j][e];
          stats[1] = total;
        }
      }
    }
    __syncthreads();
  }
  __device__ __forceinline__ void add_part(bool is_first) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float2* const at =
              reinterpret_cast<float2*>(&shared_.sums[8 * j + 2 * t() + e][dim() + 2 * m]);
          const float2 before = is_first ? float2{0, 0} : *at;
          *at = {before.x + sums_[j][m][e], before.y + sums_[j][m][e + 2]};
        }
      }
    }
  }

  const AttentionStepParams& params_;
  Shared<N>& shared_;
  const int kv_head_, position_, count_;
  Pack16 keys_[2][kChunks];
  Pack16 values_[kPartSteps][4];
  float sums_[N][4][4];  // [columns 8 j + 2 t + {0, 1}] x [dims 2 m + {0, 1}]: {00, 10, 01, 11}
  float largest_[N][2], total_[N][2];
};

__device__ __forceinline__ void load_head(const float* from, float (&value)[kHeadLaneDims]) {
#pragma unroll
  for (int i = 0; i < kHeadLaneDims; ++i) value[i] = from[threadIdx.x % 32 + 32 * i];
}

// The prepared queries of columns begin .. begin + 8 N, zero beyond the run's.
template <int N>
__device__ __forceinline__ void prepare_queries(const AttentionStepParams& params,
                                                Shared<N>& shared, int kv_head, int position,
                                                int first_token, int run_columns, int begin) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int c = warp; c < 8 * N; c += kWarps) {
    const int column = begin + c;
    float value[kHeadLaneDims] = {};
    if (column < run_columns) {
      const int token = first_token + column / kGroup;
      const int head = kv_head * kGroup + column % kGroup;
      load_head(params.q_gate + static_cast<long long>(token * kHeads + head) * kQueryStride,
                value);
      prepare_head(value, params.weights.q_norm, params.weights.inv_freq, position + token,
                   shared.loop.scratch[warp]);
    }
#pragma unroll
    for (int i = 0; i < kHeadLaneDims; ++i) {
      shared.loop.queries[c][lane + 32 * i] = float_bf16(value[i]);
    }
  }
}

// The step's own keys and values: prepared for this block's use, and appended to the cache for
// those positions that [append_begin, append_end) holds.
template <int N>
__device__ __forceinline__ void prepare_new_rows(const AttentionStepParams& params,
                                                 Shared<N>& shared, int kv_head, int position,
                                                 int count, int append_begin, int append_end) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int token = warp; token < count; token += kWarps) {
    const int row = position + token;
    const long long from = static_cast<long long>(token * kKvHeads + kv_head) * kHeadDim;
    const long long to =
        (static_cast<long long>(kv_head) * params.cache.capacity + row) * kHeadDim;
    float key[kHeadLaneDims], value[kHeadLaneDims];
    load_head(params.k + from, key);
    load_head(params.v + from, value);
    prepare_head(key, params.weights.k_norm, params.weights.inv_freq, row,
                 shared.loop.scratch[warp]);
    const bool append = row >= append_begin && row < append_end;
#pragma unroll
    for (int i = 0; i < kHeadLaneDims; ++i) {
      const int d = lane + 32 * i;
      const uint16 k = float_bf16(key[i]), v = float_bf16(value[i]);
      shared.new_keys[token][d] = k;
      shared.new_values[token][d] = v;
      if (!append) continue;
      static_cast<uint16*>(params.cache.keys)[to + d] = k;
      static_cast<uint16*>(params.cache.values)[to + d] = v;
    }
  }
}

// out = sums / total * sigmoid(gate) of one column, the splits' sums added in a fixed order: thread
// (group, quad) takes four dims of every kGroups-th split, then the groups are added.
template <int N>
__device__ __forceinline__ void finish_column(const AttentionStepParams& params,
                                              Shared<N>& shared, int kv_head, int position,
                                              int column) {
  constexpr int kQuads = kHeadDim / 4, kGroups = kThreads / kQuads;
  const int lane = threadIdx.x % 32, token = column / kGroup;
  const int head = kv_head * kGroup + column % kGroup;
  const int splits = splits_of(position + token);
  const long long index = partial_index(column, kv_head, 0);
  float2 stats[(kSplits + 31) / 32];
  float most = kLowest, total = 0;
#pragma unroll
  for (int i = 0; i < (kSplits + 31) / 32; ++i) {
    const int split = lane + 32 * i;
    stats[i] = split < splits ? load_shared_pair(partial_stats(params.partials, index + split))
                              : float2{kLowest, 0};
    most = fmaxf(most, stats[i].x);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
  }
#pragma unroll
  for (int i = 0; i < (kSplits + 31) / 32; ++i) {
    const float weight = exp2_fast(__fmul_rn(__fsub_rn(stats[i].x, most), kScale));
    total = __fmaf_rn(stats[i].y, weight, total);
    if (threadIdx.x < 32 && lane + 32 * i < splits) shared.split_weight[lane + 32 * i] = weight;
  }
  total = warp_sum(total);
  __syncthreads();
  const int quad = threadIdx.x % kQuads, group = threadIdx.x / kQuads;
  float4 sum = {0, 0, 0, 0};
#pragma unroll 8
  for (int split = group; split < splits; split += kGroups) {
    const float4 part = load_shared_work(partial_sums(params.partials, index + split) + 4 * quad);
    const float weight = shared.split_weight[split];
    sum.x = __fmaf_rn(part.x, weight, sum.x);
    sum.y = __fmaf_rn(part.y, weight, sum.y);
    sum.z = __fmaf_rn(part.z, weight, sum.z);
    sum.w = __fmaf_rn(part.w, weight, sum.w);
  }
  shared.combine[threadIdx.x] = sum;
  __syncthreads();
  const float* const parts = reinterpret_cast<const float*>(shared.combine);
  for (int d = threadIdx.x; d < kHeadDim; d += kThreads) {
    float value = 0;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) value += parts[i * kHeadDim + d];
    value /= total;
    const long long at = static_cast<long long>(token * kHeads + head);
    if (kHasGate) {
      const float gate = params.q_gate[at * kQueryStride + kHeadDim + d];
      value /= 1.0f + exp2_fast(-1.44269504f * gate);
    }
    params.out[at * kHeadDim + d] = float_bf16(value);
  }
  __syncthreads();
}

// The blocks of a KV head that arrive last share the combination: each waits for the others (all
// are running or done: the grid fits the device) and takes every so manieth column.
constexpr int kFinishers = 16;

template <int N>
__device__ __forceinline__ void finish_columns(const AttentionStepParams& params,
                                               Shared<N>& shared, int kv_head, int position,
                                               int count, int arriving) {
  const int columns = count * kGroup;
  const int finishers = min(min(arriving, columns), kFinishers);
  unsigned* const arrived = params.arrivals + 2 * kv_head;
  if (threadIdx.x == 0) {  // store() ended with a barrier
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(arrived)
                 : "memory");
    shared.rank = arriving - 1 - static_cast<int>(before);
  }
  __syncthreads();
  const int rank = shared.rank;
  if (rank >= finishers) return;
  if (threadIdx.x == 0) {
    unsigned seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
    } while (seen < static_cast<unsigned>(arriving));
  }
  __syncthreads();
  for (int column = rank; column < columns; column += finishers) {
    finish_column(params, shared, kv_head, position, column);
  }
  if (threadIdx.x != 0) return;
  unsigned left;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(left)
               : "l"(arrived + 1)
               : "memory");
  if (left == static_cast<unsigned>(finishers - 1)) arrived[0] = arrived[1] = 0;
}

template <int N>
__device__ __forceinline__ void attention_step(const AttentionStepParams& params, char* memory) {
  Shared<N>& shared = *reinterpret_cast<Shared<N>*>(memory);
  static_assert(sizeof(Shared<N>) <= attention_step_shared_bytes(kHeadDim, kSplits, 8 * N));
  const int split = blockIdx.x, kv_head = blockIdx.y;
  const int position = params.step->position, count = params.step->count;
  int arriving = 0;
  for (int token = 0; token < count; ++token) {
    arriving = max(arriving, splits_of(position + token));
  }
  if (split >= arriving) return;

  bool has_waited = false;
  for (int begin = 0, end = 0; begin < count; begin = end) {  // a run: [begin, end)
    const int per_split = split_tiles_of(position + begin);
    for (end = begin + 1; end < count && split_tiles_of(position + end) == per_split;) ++end;
    const int first = split * per_split;
    const int last = min(first + per_split, tiles_of(position + end - 1));
    if (first >= last) continue;
    const int run_columns = (end - begin) * kGroup;
    for (int column = 0; column < run_columns; column += 8 * N) {
      Pass<N> pass(params, shared, kv_head, position, count);
      pass.load_keys(first);
      pass.load_values(first);
      if (!has_waited) {
        wait_for_previous();
        let_next_start();
        has_waited = true;
      }
      prepare_queries(params, shared, kv_head, position, begin, run_columns, column);
      if (column == 0 && last * kTile > position) {
        prepare_new_rows(params, shared, kv_head, position, count,
                         max(first * kTile, position + begin), min(last * kTile, position + end));
      }
      __syncthreads();
      pass.run(first, last, split, begin, run_columns, column);
    }
  }
  finish_columns(params, shared, kv_head, position, count, arriving);
}

}  // namespace

extern __shared__ __align__(16) char attention_step_memory[];

// Grid (splits, kv_heads), 256 threads, one block a multiprocessor. Reads 4 * kv_heads * head_dim
// bytes and does 4 * heads * head_dim FLOP a cached position and token.
extern "C" __global__ void __launch_bounds__(256, 1)
    attention_step_narrow(const __grid_constant__ AttentionStepParams params) {
  attention_step<1>(params, attention_step_memory);
}
extern "C" __global__ void __launch_bounds__(256, 1)
    attention_step_wide(const __grid_constant__ AttentionStepParams params) {
  attention_step<4>(params, attention_step_memory);
}

}  // namespace moray::cuda
