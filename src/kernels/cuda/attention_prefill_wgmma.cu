// attention_prefill_wgmma: flash attention on the warpgroup products of sm_90a.
//
// As attention_prefill (same rows, same rounding, same results up to the order of sums within a
// tile), but two warpgroups of 64 rows each read queries, keys and values from shared memory, and
// the softmax of a tile runs while the tensor cores add the tile before it (Shah and others,
// FlashAttention-3, 2024, whose overlap within a warpgroup this is).
//
//   tensor cores   S(i+1) | O += P(i) V(i)            | S(i+2) | ...
//   other units           | P(i+1) from S(i+1), copies         | P(i+2)
//
// Invariant: tiles stand on an absolute grid of kKeys positions; a row's sums run over them in
// ascending order, and a tile above its diagonal changes no bit.
#include "attention_params.h"
#include "constants.cuh"
#include "device/grid.cuh"
#include "device/softmax.cuh"
#include "device/tile.cuh"
#include "device/wgmma_bf16.cuh"

namespace moray::cuda {

namespace {

constexpr int kRows = kWgmmaRows, kThreads = 2 * kRows;

#if __CUDA_ARCH__ == 900

constexpr int kKeys = attention_wgmma_keys(kHeadDim);
constexpr int kParts = kKeys / 64;                                 // products of 64 keys
constexpr int kHalves = kHeadDim % 128 == 0 ? kHeadDim / 128 : 1;  // products of 128 dims
constexpr int kPieces = kHeadDim / 8;
constexpr int kTileBytes = kKeys * kHeadDim * 2;

// Panels of 64 dims; see device/wgmma_bf16.cuh.
template <int Rows>
__device__ __forceinline__ uint32 panel_offset(int row, int piece) {
  return static_cast<uint32>(piece / 8 * Rows * 128 + row * 128 + (piece % 8 ^ row % 8) * 16);
}

class Block {
 public:
  __device__ Block(const AttentionPrefillParams& params, int kv_head, int first_row, uint32 memory)
      : params_(params), kv_head_(kv_head), first_row_(first_row), queries_(memory) {
    keys_ = queries_ + kRows * kHeadDim * 2;
    values_ = keys_ + 2 * kTileBytes;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest_[h] = kLowestScore;
      total_[h] = 0;
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int i = 0; i < 64; ++i) sums_[h][i] = 0;
    }
  }

  __device__ __forceinline__ void run() {
    const int rows = params_.tokens * kGroup;
    const int last_token = (min(first_row_ + kRows, rows) - 1) / kGroup;
    tiles_ = (params_.position + last_token) / kKeys + 1;
    copy_queries(rows);
    copy_tile(cache().keys, keys_, 0);
    copies_end_group();
    see_copies();
    float score[kParts][32];
    wgmma_fence();
    multiply_keys(score, 0);
    wgmma_end();
    copy_tile(cache().keys, keys_ + kTileBytes, 1);
    copy_tile(cache().values, values_, 0);
    copies_end_group();
    wgmma_wait_pending<0>();
    pin(score);
    uint32 weights[kKeys / 16][4];
    float shrink[2];
    weigh(score, 0, weights, shrink);
    for (int tile = 0; tile + 1 < tiles_; ++tile) {
      see_copies();  // K(tile + 1), V(tile); nobody reads K(tile), V(tile - 1) any more
      pin_sums();
      pin(weights);
      pin(score);
      wgmma_fence();
      multiply_keys(score, tile + 1);
      wgmma_end();
      multiply_values(weights, tile);
      wgmma_end();
      copy_tile(cache().keys, keys_ + tile % 2 * kTileBytes, tile + 2);
      copy_tile(cache().values, values_ + (tile + 1) % 2 * kTileBytes, tile + 1);
      copies_end_group();
      wgmma_wait_pending<1>();
      pin(score);
      uint32 next[kKeys / 16][4];
      weigh(score, tile + 1, next, shrink);
      wgmma_wait_pending<0>();
      pin_sums();
      pin(weights);
#pragma unroll
      for (int s = 0; s < kKeys / 16; ++s) {
#pragma unroll
        for (int e = 0; e < 4; ++e) weights[s][e] = next[s][e];
      }
      rescale(shrink);
    }
    see_copies();
    pin_sums();
    pin(weights);
    wgmma_fence();
    multiply_values(weights, tiles_ - 1);
    wgmma_end();
    wgmma_wait_pending<0>();
    pin_sums();
    store(rows);
  }

 private:
  static __device__ __forceinline__ int lane() {
    return threadIdx.x % 32;
  }
  static __device__ __forceinline__ int warp() {
    return threadIdx.x / 32;
  }
  static __device__ __forceinline__ int warpgroup() {
    return threadIdx.x / 128;
  }

  __device__ __forceinline__ const KvCache& cache() const {
    return kKvFp8 ? params_.unpacked : params_.cache;
  }
  __device__ __forceinline__ long long query_at(int row) const {
    const int token = row / kGroup, head = kv_head_ * kGroup + row % kGroup;
    return (static_cast<long long>(token) * kHeads + head) * kQueryStride;
  }
  __device__ __forceinline__ void copy_queries(int rows) const {
#pragma unroll 4
    for (int i = threadIdx.x; i < kRows * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      const bool valid = first_row_ + row < rows;
      const uint16* const from = params_.q_gate + query_at(valid ? first_row_ + row : 0);
      copy_async(queries_ + panel_offset<kRows>(row, piece), from + piece * 8, valid);
    }
  }
  // Nothing beyond the block's last tile; rows that no token of the call has reached become zero.
  __device__ __forceinline__ void copy_tile(const void* base, uint32 to, int tile) const {
    if (tile >= tiles_) return;
    const int end = params_.position + params_.tokens - tile * kKeys;
    const uint16* const start =
        static_cast<const uint16*>(base) +
        (static_cast<long long>(kv_head_) * cache().capacity + tile * kKeys) * kHeadDim;
#pragma unroll
    for (int i = 0; i < kKeys * kPieces / kThreads; ++i) {
      const int index = threadIdx.x + i * kThreads;
      const int row = index / kPieces, piece = index % kPieces;
      const bool valid = row < end;
      copy_async(to + panel_offset<kKeys>(row, piece),
                 start + (valid ? row * kHeadDim + piece * 8 : 0), valid);
    }
  }
  // All copies of all threads have landed and are seen by the products.
  __device__ __forceinline__ void see_copies() const {
    copies_wait<0>();
    wgmma_see_writes();
    __syncthreads();
  }

  __device__ __forceinline__ void pin_sums() {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) wgmma_pin(sums_[h]);
  }
  static __device__ __forceinline__ void pin(uint32 (&weights)[kKeys / 16][4]) {
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s) wgmma_pin(weights[s]);
  }
  static __device__ __forceinline__ void pin(float (&score)[kParts][32]) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) wgmma_pin(score[p]);
  }

  __device__ __forceinline__ void multiply_keys(float (&score)[kParts][32], int tile) const {
    const uint32 keys = keys_ + tile % 2 * kTileBytes;
    const uint32 queries = queries_ + warpgroup() * 64 * 128;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int s = 0; s < kHeadDim / 16; ++s) {
        const uint64 a = wgmma_rows(queries + s / 4 * kRows * 128 + s % 4 * 32);
        const uint64 b = wgmma_rows(keys + s / 4 * kKeys * 128 + p * 64 * 128 + s % 4 * 32);
        wgmma_bf16_rows(score[p], a, b, s != 0);
      }
    }
  }
  __device__ __forceinline__ void multiply_values(const uint32 (&weights)[kKeys / 16][4],
                                                  int tile) {
    const uint32 values = values_ + tile % 2 * kTileBytes;
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        wgmma_bf16_columns(sums_[h], weights[s],
                           wgmma_columns(values + 2 * h * kKeys * 128 + s * 16 * 128, kKeys * 128));
      }
    }
  }

  // Weights exp(score - largest so far) of a tile as BF16 operands; what was summed before is to
  // be multiplied by `shrink`.
  __device__ __forceinline__ void weigh(float (&score)[kParts][32], int tile,
                                        uint32 (&weights)[kKeys / 16][4], float (&shrink)[2]) {
    if ((tile + 1) * kKeys > params_.position + first_row_ / kGroup + 1) mask(score, tile);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = kLowestScore;
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          if (i / 2 % 2 == h) most = fmaxf(most, score[p][i]);
        }
      }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      most = fmaxf(most, largest_[h]);
      shrink[h] = exp2_fast(__fmul_rn(__fsub_rn(largest_[h], most), kScoreScale));
      const float offset = __fmul_rn(most, -kScoreScale);
      largest_[h] = most;
      float total = 0;
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          if (i / 2 % 2 != h) continue;
          score[p][i] = exp2_fast(__fmaf_rn(score[p][i], kScoreScale, offset));
          total += score[p][i];
        }
      }
      total_[h] = __fmaf_rn(total_[h], shrink[h], total);
    }
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = s % 4 * 8 + e * 2;
        weights[s][e] = float_bf16x2(score[s / 4][i], score[s / 4][i + 1]);
      }
    }
  }
  __device__ __forceinline__ void mask(float (&score)[kParts][32], int tile) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row_ + warp() * 16 + lane() / 4 + 8 * h;
      const int newest = params_.position + row / kGroup - tile * kKeys - 2 * (lane() % 4);
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          if (i / 2 % 2 != h) continue;
          if (p * 64 + i / 4 * 8 + i % 2 > newest) score[p][i] = masked_score();
        }
      }
    }
  }
  __device__ __forceinline__ void rescale(const float (&shrink)[2]) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int i = 0; i < 64; ++i) sums_[h][i] = __fmul_rn(sums_[h][i], shrink[i / 2 % 2]);
    }
  }

  // out = sums / total * sigmoid(gate), by way of the query rows in shared memory.
  __device__ __forceinline__ void store(int rows) {
    __syncthreads();
    const int t = lane() % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = total_[r];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const float factor = 1.0f / total;
      const int row = warp() * 16 + lane() / 4 + 8 * r;
      const bool valid = first_row_ + row < rows;
      const uint16* const gates =
          params_.q_gate + query_at(valid ? first_row_ + row : 0) + kHeadDim + 2 * t;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        float low = sums_[n / 16][n % 16 * 4 + 2 * r] * factor;
        float high = sums_[n / 16][n % 16 * 4 + 2 * r + 1] * factor;
        if (kHasGate && valid) {
          const uint32 gate = *reinterpret_cast<const uint32*>(gates + 8 * n);
          low *= sigmoid_fast(bf16_low(gate));
          high *= sigmoid_fast(bf16_high(gate));
        }
        store_shared(queries_ + panel_offset<kRows>(row, n) + 4 * t, float_bf16x2(low, high));
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = lane(); i < 16 * kPieces; i += 32) {
      const int row = warp() * 16 + i / kPieces, piece = i % kPieces, global = first_row_ + row;
      if (global >= rows) break;
      const long long at =
          static_cast<long long>(global / kGroup) * kHeads + kv_head_ * kGroup + global % kGroup;
      *reinterpret_cast<Pack16*>(params_.out + at * kHeadDim + piece * 8) =
          load_shared(queries_ + panel_offset<kRows>(row, piece));
    }
  }

  const AttentionPrefillParams& params_;
  const int kv_head_, first_row_;
  int tiles_;
  uint32 queries_, keys_, values_;  // shared addresses; two tiles each of keys and values
  float sums_[kHalves][64];
  float largest_[2], total_[2];
};

#endif  // __CUDA_ARCH__ == 900

}  // namespace

extern __shared__ __align__(1024) char attention_wgmma_memory[];

// Grid and cost as attention_prefill; 256 threads, one block a multiprocessor. Where there are no
// such products or head_dim does not fit them nobody builds this program; a launch all the same is
// a bug, and outputs of NaN show it.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    attention_prefill_wgmma(const __grid_constant__ AttentionPrefillParams params) {
  const int blocks = (params.tokens * kGroup + kRows - 1) / kRows;
  const int index = blocks - 1 - static_cast<int>(blockIdx.x) / kKvHeads;
#if __CUDA_ARCH__ == 900
  if constexpr (kHeadDim % 128 == 0) {
    wait_for_previous();
    let_next_start();
    const uint32 memory = (shared_address(attention_wgmma_memory) + 1023) & ~uint32(1023);
    Block block(params, blockIdx.x % kKvHeads, index * kRows, memory);
    block.run();
    return;
  }
#endif
  constexpr int kWidth = kHeads * kHeadDim;
  const int token = (index * kRows + static_cast<int>(threadIdx.x)) / kGroup;
  if (token < params.tokens) params.out[static_cast<long long>(token) * kWidth] = 0x7fff;
}

}  // namespace moray::cuda
