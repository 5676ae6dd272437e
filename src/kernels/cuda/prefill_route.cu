// Routing of a prefill block and the counting sort of its (token, slot) pairs by expert.
//
// Three kernels over chunks of 64 tokens. A token chooses an expert at most once, so a chunk's
// pairs of an expert are a 64-bit mask of its tokens: counts are its bits, and a pair's place among
// them is the number of lower bits. So the order (expert, token) is exact and needs no ordering of
// atomics: setting bits commutes.
#include "constants.cuh"
#include "device/number.cuh"
#include "prefill_params.h"

namespace moray::cuda {

namespace {

inline constexpr int kRouteThreads = 1024;  // a warp two tokens: their steps wait for one another
inline constexpr int kPlaceThreads = 256;
inline constexpr int kPlanThreads = 1024;
inline constexpr int kLaneExperts = (kExperts + 31) / 32;

// Larger logit, larger key, zeros of either sign alike; NaN below all numbers. 0: taken or absent.
__device__ uint32 order_key(float logit) {
  if (logit != logit) return 1;
  const uint32 bits = __float_as_uint(logit + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ float key_logit(uint32 key) {
  if (key == 1) return __uint_as_float(0x7fc00000u);
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// Top-k of one token by one warp; lane e % 32 holds expert e. Lane s ends with slot s.
__device__ void choose(const RouteRowsParams& p, int token, unsigned long long* masks) {
  const int lane = threadIdx.x % 32;
  const float* logits = p.logits + int64(token) * p.logits_stride;
  uint32 keys[kLaneExperts];
  uint32 largest = 0;
#pragma unroll
  for (int i = 0; i < kLaneExperts; ++i) {
    const int expert = lane + 32 * i;
    keys[i] = expert < kExperts ? order_key(logits[expert]) : 0;
    largest = max(largest, keys[i]);
  }
  const float top = key_logit(__reduce_max_sync(~0u, largest));
  float total = 0;
  if constexpr (!kNormaliseTopK) {
#pragma unroll
    for (int i = 0; i < kLaneExperts; ++i) {
      if (keys[i] != 0) total += expf(key_logit(keys[i]) - top);
    }
    total = warp_sum(total);
  }
  uint32 my_key = 0;
  int my_expert = 0;
#pragma unroll 1
  for (int slot = 0; slot < kTopK; ++slot) {
    uint32 best = 0;
#pragma unroll
    for (int i = 0; i < kLaneExperts; ++i) best = max(best, keys[i]);
    best = __reduce_max_sync(~0u, best);
    uint32 expert = ~0u;
#pragma unroll
    for (int i = kLaneExperts - 1; i >= 0; --i) {
      if (keys[i] == best) expert = lane + 32 * i;
    }
    expert = __reduce_min_sync(~0u, expert);
#pragma unroll
    for (int i = 0; i < kLaneExperts; ++i) {
      if (expert == uint32(lane + 32 * i)) keys[i] = 0;
    }
    if (lane == slot) {
      my_key = best;
      my_expert = int(expert);
    }
  }
  float weight = lane < kTopK ? expf(key_logit(my_key) - top) : 0.0f;
  if constexpr (kNormaliseTopK) total = warp_sum(weight);
  weight /= total;
  if (lane < kTopK) {
    p.plan.expert_ids[int64(token) * kTopK + lane] = my_expert;
    p.plan.expert_weights[int64(token) * kTopK + lane] = weight;
    atomicOr(masks + my_expert, 1ull << (token % kPlanChunkTokens));
  }
  if (lane == 0 && p.shared_logits != nullptr) {
    const float logit = p.shared_logits[int64(token) * p.shared_stride];
    p.plan.shared_weight[token] = 1 / (1 + expf(-logit));
  }
}

}  // namespace

static_assert(kTopK <= 32 && kExperts <= kPlanThreads && kPlanChunkTokens == 64);

// A block takes a chunk, a warp two tokens of it. Bytes: 4 E read a token.
extern "C" __global__ void __launch_bounds__(kRouteThreads)
    route_rows(const __grid_constant__ RouteRowsParams p) {
  __shared__ unsigned long long masks[kExperts];
  for (int e = threadIdx.x; e < kExperts; e += kRouteThreads) masks[e] = 0;
  __syncthreads();
  const int first = blockIdx.x * kPlanChunkTokens;
  const int end = min(first + kPlanChunkTokens, p.tokens);
  for (int token = first + threadIdx.x / 32; token < end; token += kRouteThreads / 32) {
    choose(p, token, masks);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < kExperts; e += kRouteThreads) {
    p.plan.counts[blockIdx.x * kExperts + e] = __popcll(masks[e]);
  }
}

// One block: counts become first rows; tiles in order of expert. A thread takes an expert and a run
// of chunks. Bytes: 8 E a chunk read, 4 E written, all in L2.
extern "C" __global__ void __launch_bounds__(kPlanThreads)
    plan_tiles(const __grid_constant__ RouteRowsParams p) {
  constexpr int kParts = kPlanThreads / kExperts;
  __shared__ int part_count[kParts][kExperts];
  __shared__ int first_row[kExperts], first_tile[kExperts], rows[kExperts];
  const int chunks = (p.tokens + kPlanChunkTokens - 1) / kPlanChunkTokens;
  const int run = (chunks + kParts - 1) / kParts;
  const int expert = threadIdx.x % kExperts, part = threadIdx.x / kExperts;
  const int begin = min(part * run, chunks), end = min(begin + run, chunks);
  if (part < kParts) {
    int count = 0;
#pragma unroll 16
    for (int c = begin; c < end; ++c) count += p.plan.counts[c * kExperts + expert];
    part_count[part][expert] = count;
  }
  __syncthreads();
  if (threadIdx.x < 32) {  // lane: kLaneExperts neighbouring experts
    int row = 0, tile = 0;
    for (int i = 0; i < kLaneExperts; ++i) {
      const int e = threadIdx.x * kLaneExperts + i;
      if (e >= kExperts) break;
      int count = 0;
      for (int s = 0; s < kParts; ++s) count += part_count[s][e];
      rows[e] = count;
      row += count;
      tile += (count + p.plan.tile_rows - 1) / p.plan.tile_rows;
    }
    int row_end = row, tile_end = tile;
    for (int step = 1; step < 32; step *= 2) {
      const int row_before = __shfl_up_sync(~0u, row_end, step);
      const int tile_before = __shfl_up_sync(~0u, tile_end, step);
      if (int(threadIdx.x) >= step) {
        row_end += row_before;
        tile_end += tile_before;
      }
    }
    row = row_end - row;
    tile = tile_end - tile;
    for (int i = 0; i < kLaneExperts; ++i) {
      const int e = threadIdx.x * kLaneExperts + i;
      if (e >= kExperts) break;
      first_row[e] = row;
      first_tile[e] = tile;
      row += rows[e];
      tile += (rows[e] + p.plan.tile_rows - 1) / p.plan.tile_rows;
    }
    if (threadIdx.x == 31) *p.plan.tile_count = tile_end;
  }
  __syncthreads();
  if (part >= kParts) return;
  int row = first_row[expert];
  for (int s = 0; s < part; ++s) row += part_count[s][expert];
#pragma unroll 16
  for (int c = begin; c < end; ++c) {
    int* count = p.plan.counts + c * kExperts + expert;
    const int here = *count;
    *count = row;
    row += here;
  }
  const int tiles = (rows[expert] + p.plan.tile_rows - 1) / p.plan.tile_rows;
  for (int i = part; i < tiles; i += kParts) {
    const int first = i * p.plan.tile_rows;
    p.plan.tiles[first_tile[expert] + i] = {expert, first_row[expert] + first,
                                            min(p.plan.tile_rows, rows[expert] - first)};
  }
}

// A block places the pairs of a chunk. Bytes: 4 read and 8 written a pair.
extern "C" __global__ void __launch_bounds__(kPlaceThreads)
    place_rows(const __grid_constant__ RouteRowsParams p) {
  __shared__ unsigned long long masks[kExperts];
  for (int e = threadIdx.x; e < kExperts; e += kPlaceThreads) masks[e] = 0;
  __syncthreads();
  const int begin = blockIdx.x * kPlanChunkTokens * kTopK;
  const int end = min(begin + kPlanChunkTokens * kTopK, p.tokens * kTopK);
  for (int pair = begin + threadIdx.x; pair < end; pair += kPlaceThreads) {
    atomicOr(masks + p.plan.expert_ids[pair], 1ull << (pair / kTopK % kPlanChunkTokens));
  }
  __syncthreads();
  for (int pair = begin + threadIdx.x; pair < end; pair += kPlaceThreads) {
    const int expert = p.plan.expert_ids[pair];
    const unsigned long long before = (1ull << (pair / kTopK % kPlanChunkTokens)) - 1;
    const int row =
        p.plan.counts[blockIdx.x * kExperts + expert] + __popcll(masks[expert] & before);
    p.plan.sorted[row] = pair;
    p.plan.row_of[pair] = row;
  }
}

}  // namespace moray::cuda
