// attention_rows and attention_prefill: a block of up to thousands of tokens at once.
//
// attention_rows norms and rotates queries in place, keys and values into the cache.
// attention_prefill is flash attention (Dao, FlashAttention-2, 2023) on mma.sync: a block owns
// kRows query rows, each warp 16 of them, and walks the keys in tiles of 64 on the absolute grid
// with an on-line softmax; weights go from accumulators to operands without leaving registers.
// The rows of a block are (token, head) pairs of one KV head, heads fastest, so that all its query
// heads share the tiles and little of the causal triangle is computed in vain.
//
// Invariant: a row's sums run over the tiles in ascending order, each in the order of its products;
// a tile wholly above the diagonal changes no bit. So results do not depend on how a prompt is cut.
#include "attention_params.h"
#include "constants.cuh"
#include "device/grid.cuh"
#include "device/head.cuh"
#include "device/kv_cache.cuh"
#include "device/mma.cuh"
#include "device/softmax.cuh"
#include "device/tile.cuh"

namespace moray::cuda {

namespace {

constexpr int kRows = attention_prefill_rows(kArch / 10);
constexpr int kPrefillWarps = kRows / 16, kPrefillThreads = 32 * kPrefillWarps;
constexpr int kKeys = kPrefillKeys;
constexpr int kBuffers = attention_prefill_buffers(kArch / 10);
constexpr int kTileBytes = kKeys * kHeadDim * 2;
constexpr int kSteps = kHeadDim / 16;            // products of 16 dims
constexpr bool kHoldsQueries = kHeadDim <= 128;  // in registers; otherwise read for every tile

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// The rows of one block and what a lane (g, t) of a warp keeps of its 16: rows g and g + 8.
class Block {
 public:
  __device__ Block(const AttentionPrefillParams& params, int kv_head, int first_row, char* memory)
      : params_(params), kv_head_(kv_head), first_row_(first_row) {
    queries_ = shared_address(memory);
    keys_ = queries_ + kRows * kHeadDim * 2;
    values_ = keys_ + kBuffers * kTileBytes;
    staging_ = memory;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest_[h] = kLowestScore;
      total_[h] = 0;
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums_[n][e] = 0;
    }
  }

  __device__ __forceinline__ void run() {
    const int rows = params_.tokens * kGroup;
    const int last_token = (min(first_row_ + kRows, rows) - 1) / kGroup;
    const int tiles = (params_.position + last_token) / kKeys + 1;
    copy_queries(rows);
    copy_tile(cache().keys, keys_, 0);
    if (kBuffers == 2) copy_tile(cache().values, values_, 0);
    copies_end_group();
    for (int tile = 0; tile < tiles; ++tile) {
      copies_wait<0>();
      __syncthreads();  // this tile's keys are here; nobody reads the tile before
      if (tile == 0 && kHoldsQueries) load_queries();
      const int buffer = kBuffers == 2 ? tile % 2 * kTileBytes : 0;
      if (kBuffers == 2) {
        if (tile + 1 < tiles) {
          copy_tile(cache().keys, keys_ + (kTileBytes - buffer), tile + 1);
          copy_tile(cache().values, values_ + (kTileBytes - buffer), tile + 1);
        }
      } else {
        copy_tile(cache().values, values_, tile);
      }
      copies_end_group();
      float score[kKeys / 8][4];
      multiply_keys(keys_ + buffer, score);
      if ((tile + 1) * kKeys > params_.position + first_row_ / kGroup + 1) mask(tile, score);
      weigh(score);
      if (kBuffers == 1) {
        copies_wait<0>();
        __syncthreads();  // the values are here; nobody reads the keys any more
        if (tile + 1 < tiles) copy_tile(cache().keys, keys_, tile + 1);
        copies_end_group();
      }
      multiply_values(values_ + buffer, score);
    }
    store(rows);
  }

 private:
  static __device__ __forceinline__ int lane() {
    return threadIdx.x % 32;
  }
  static __device__ __forceinline__ int warp() {
    return threadIdx.x / 32;
  }

  __device__ __forceinline__ const KvCache& cache() const {
    return kKvFp8 ? params_.unpacked : params_.cache;
  }
  // Element offset of a row's query in q_gate.
  __device__ __forceinline__ long long query_at(int row) const {
    const int token = row / kGroup, head = kv_head_ * kGroup + row % kGroup;
    return (static_cast<long long>(token) * kHeads + head) * kQueryStride;
  }

  __device__ __forceinline__ void copy_queries(int rows) const {
    constexpr int kPieces = kHeadDim / 8;
#pragma unroll 4
    for (int i = threadIdx.x; i < kRows * kPieces; i += kPrefillThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      const bool valid = first_row_ + row < rows;
      const uint16* const from = params_.q_gate + query_at(valid ? first_row_ + row : 0);
      copy_async(queries_ + tile_offset<kHeadDim>(row, piece), from + piece * 8, valid);
    }
  }
  // Keys or values of a tile; rows that no token of the call has reached become zero.
  __device__ __forceinline__ void copy_tile(const void* base, uint32 to, int tile) const {
    constexpr int kPieces = kHeadDim / 8;
    const int end = params_.position + params_.tokens - tile * kKeys;
    const uint16* const start =
        static_cast<const uint16*>(base) +
        (static_cast<long long>(kv_head_) * cache().capacity + tile * kKeys) * kHeadDim;
#pragma unroll 4
    for (int i = 0; i < kKeys * kPieces / kPrefillThreads; ++i) {
      const int index = threadIdx.x + i * kPrefillThreads;
      const int row = index / kPieces, piece = index % kPieces;
      const bool valid = row < end;
      copy_async(to + tile_offset<kHeadDim>(row, piece),
                 start + (valid ? row * kHeadDim + piece * 8 : 0), valid);
    }
  }

  __device__ __forceinline__ uint32 query_address(int step) const {
    return queries_ + tile_offset<kHeadDim>(warp() * 16 + lane() % 16, step * 2 + lane() / 16);
  }
  __device__ __forceinline__ void load_queries() {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) load_blocks(query_[kHoldsQueries ? s : 0], query_address(s));
  }

  __device__ __forceinline__ void multiply_keys(uint32 keys, float (&score)[kKeys / 8][4]) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) score[n][e] = 0;
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32(&q)[4] = query_[kHoldsQueries ? s : 0];
      if (!kHoldsQueries) load_blocks(q, query_address(s));
#pragma unroll
      for (int n = 0; n < kKeys / 8; n += 2) {  // blocks: keys n (dims 0, 8), keys n + 1
        uint32 k[4];
        load_blocks(k, keys + tile_offset<kHeadDim>(n * 8 + lane() / 16 * 8 + lane() % 8,
                                                    s * 2 + lane() / 8 % 2));
        mma_bf16(score[n], q[0], q[1], q[2], q[3], k[0], k[1]);
        mma_bf16(score[n + 1], q[0], q[1], q[2], q[3], k[2], k[3]);
      }
    }
  }

  __device__ __forceinline__ void mask(int tile, float (&score)[kKeys / 8][4]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row_ + warp() * 16 + lane() / 4 + 8 * h;
      const int newest = params_.position + row / kGroup - tile * kKeys - 2 * (lane() % 4);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * n + e > newest) score[n][2 * h + e] = masked_score();
        }
      }
    }
  }

  // Scores become weights exp(score - largest so far); sums shrink where the largest grew.
  __device__ __forceinline__ void weigh(float (&score)[kKeys / 8][4]) {
    float shrink[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = score[0][2 * h];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        most = fmaxf(most, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
      }
      most = fmaxf(quad_max(most), largest_[h]);
      shrink[h] = exp2_fast(__fmul_rn(__fsub_rn(largest_[h], most), kScoreScale));
      const float offset = __fmul_rn(most, -kScoreScale);
      largest_[h] = most;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          score[n][2 * h + e] = exp2_fast(__fmaf_rn(score[n][2 * h + e], kScoreScale, offset));
          total += score[n][2 * h + e];
        }
      }
      total_[h] = __fmaf_rn(total_[h], shrink[h], total);
    }
    if (!__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) return;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums_[n][e] = __fmul_rn(sums_[n][e], shrink[e / 2]);
    }
  }

  __device__ __forceinline__ void multiply_values(uint32 values, float (&weight)[kKeys / 8][4]) {
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s) {
      const uint32 p0 = float_bf16x2(weight[2 * s][0], weight[2 * s][1]);
      const uint32 p1 = float_bf16x2(weight[2 * s][2], weight[2 * s][3]);
      const uint32 p2 = float_bf16x2(weight[2 * s + 1][0], weight[2 * s + 1][1]);
      const uint32 p3 = float_bf16x2(weight[2 * s + 1][2], weight[2 * s + 1][3]);
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n += 2) {  // blocks: keys 0 and 8 (dims n), dims n + 1
        uint32 v[4];
        load_blocks_transposed(
            v, values + tile_offset<kHeadDim>(s * 16 + lane() % 16, n + lane() / 16));
        mma_bf16(sums_[n], p0, p1, p2, p3, v[0], v[1]);
        mma_bf16(sums_[n + 1], p0, p1, p2, p3, v[2], v[3]);
      }
    }
  }

  // out = sums / total * sigmoid(gate), by way of the warp's own query rows in shared memory.
  __device__ __forceinline__ void store(int rows) {
    const int g = lane() / 4, t = lane() % 4;
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float factor = 1.0f / quad_sum(total_[h]);
      const int row = warp() * 16 + g + 8 * h;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        float low = sums_[n][2 * h] * factor, high = sums_[n][2 * h + 1] * factor;
        if (kHasGate && first_row_ + row < rows) {
          const uint32 gate = *reinterpret_cast<const uint32*>(
              params_.q_gate + query_at(first_row_ + row) + kHeadDim + 8 * n + 2 * t);
          low *= sigmoid_fast(bf16_low(gate));
          high *= sigmoid_fast(bf16_high(gate));
        }
        *reinterpret_cast<uint32*>(staging_ + tile_offset<kHeadDim>(row, n) + 4 * t) =
            float_bf16x2(low, high);
      }
    }
    __syncwarp();
    constexpr int kPieces = kHeadDim / 8;
#pragma unroll
    for (int i = lane(); i < 16 * kPieces; i += 32) {
      const int row = warp() * 16 + i / kPieces, piece = i % kPieces;
      if (first_row_ + row >= rows) break;
      const int global = first_row_ + row;
      const long long at =
          static_cast<long long>(global / kGroup) * kHeads + kv_head_ * kGroup + global % kGroup;
      *reinterpret_cast<Pack16*>(params_.out + at * kHeadDim + piece * 8) =
          *reinterpret_cast<const Pack16*>(staging_ + tile_offset<kHeadDim>(row, piece));
    }
  }

  const AttentionPrefillParams& params_;
  const int kv_head_, first_row_;
  uint32 queries_, keys_, values_;  // shared addresses
  char* staging_;                   // of the queries
  uint32 query_[kHoldsQueries ? kSteps : 1][4];
  float sums_[kHeadDim / 8][4];
  float largest_[2], total_[2];
};

constexpr int kRowWarps = 8;

}  // namespace

// Grid (ceil(tokens * (heads + 2 kv_heads) / 8)), 256 threads: a warp a head. Moves twice the bytes
// of queries, keys and values.
extern "C" __global__ void __launch_bounds__(256)
    attention_rows(const __grid_constant__ AttentionPrefillParams params) {
  __shared__ float scratch[kRowWarps][kHeadDim];
  constexpr int kJobs = kHeads + 2 * kKvHeads;
  wait_for_previous();
  let_next_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int index = blockIdx.x * kRowWarps + warp;
  const int token = index / kJobs, job = index % kJobs, position = params.position + token;
  if (token >= params.tokens) return;
  const bool is_query = job < kHeads, is_key = !is_query && job < kHeads + kKvHeads;
  const int head = is_query ? job : (job - kHeads) % kKvHeads;
  const long long kv_from = (static_cast<long long>(token) * kKvHeads + head) * kHeadDim;
  uint16* const query =
      params.q_gate + (static_cast<long long>(token) * kHeads + head) * kQueryStride;
  const uint16* const from = is_query ? query : (is_key ? params.k : params.v) + kv_from;
  float value[kHeadLaneDims];
#pragma unroll
  for (int i = 0; i < kHeadLaneDims; ++i) value[i] = bf16_float(from[lane + 32 * i]);
  if (is_query || is_key) {
    const float* const norm = is_query ? params.weights.q_norm : params.weights.k_norm;
    prepare_head(value, head_tables(norm, params.weights.inv_freq, position), scratch[warp]);
  }
  if (is_query) {
#pragma unroll
    for (int i = 0; i < kHeadLaneDims; ++i) query[lane + 32 * i] = float_bf16(value[i]);
    return;
  }
  const long long row = static_cast<long long>(head) * params.cache.capacity + position;
  CacheElement* const to =
      static_cast<CacheElement*>(is_key ? params.cache.keys : params.cache.values) + row * kHeadDim;
  CacheElement element[kHeadLaneDims];
  const float scale = to_cache(value, element);
#pragma unroll
  for (int i = 0; i < kHeadLaneDims; ++i) to[lane + 32 * i] = element[i];
  if (kKvFp8 && lane == 0)
    (is_key ? params.cache.key_scales : params.cache.value_scales)[row] = scale;
}

// kKvFp8: grid (ceil(rows / 8), kv_heads, 2), 256 threads, a warp a row of keys (z = 0) or values;
// rounds code times scale to BF16. Reads head_dim and writes 2 head_dim bytes a row.
extern "C" __global__ void __launch_bounds__(256)
    attention_unpack(const __grid_constant__ AttentionPrefillParams params) {
  wait_for_previous();
  let_next_start();
  const int row = blockIdx.x * kRowWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= params.position + params.tokens) return;
  const bool is_key = blockIdx.z == 0;
  const KvCache& cache = params.cache;
  const long long from = static_cast<long long>(blockIdx.y) * cache.capacity + row;
  const long long to = static_cast<long long>(blockIdx.y) * params.unpacked.capacity + row;
  const float scale = kKvFp8 ? (is_key ? cache.key_scales : cache.value_scales)[from] : 1.0f;
  const auto* const source =
      static_cast<const CacheElement*>(is_key ? cache.keys : cache.values) + from * kHeadDim;
  uint16* const target =
      static_cast<uint16*>(is_key ? params.unpacked.keys : params.unpacked.values) + to * kHeadDim;
  if (lane * 8 >= kHeadDim) return;
  const Pack16 piece = widen(*reinterpret_cast<const CachePiece*>(source + lane * 8));
  Pack16 scaled;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    scaled.word[i] =
        float_bf16x2(bf16_low(piece.word[i]) * scale, bf16_high(piece.word[i]) * scale);
  }
  *reinterpret_cast<Pack16*>(target + lane * 8) = scaled;
}

extern __shared__ __align__(128) char attention_prefill_memory[];

// Grid (ceil(tokens * heads / kv_heads / kRows) * kv_heads), the longest rows first. Two products
// of 2 * 16 * 64 * head_dim FLOP a warp and tile; reads a tile (256 head_dim bytes) from the
// second-level cache for every kRows rows.
extern "C" __global__ void __launch_bounds__(kPrefillThreads, 1)
    attention_prefill(const __grid_constant__ AttentionPrefillParams params) {
  wait_for_previous();
  let_next_start();
  const int blocks = (params.tokens * kGroup + kRows - 1) / kRows;
  const int index = blocks - 1 - static_cast<int>(blockIdx.x) / kKvHeads;
  Block block(params, blockIdx.x % kKvHeads, index * kRows, attention_prefill_memory);
  block.run();
}

}  // namespace moray::cuda
