// From router logits to the experts of a step, in every block that needs them.
//
// Choosing again in each block (half a microsecond) costs less than a grid-wide second phase behind
// the router. Order: larger logit first, equal logits by lower id, NaN after all numbers, so that
// ids are distinct and in range whatever the logits are.
#pragma once

#include "async_copy.cuh"
#include "constants.cuh"
#include "src/kernels/cuda/decode_params.h"

static_assert(kTopK >= 1 && kTopK <= moray::cuda::kTopKMax && kTopK <= kExperts);
static_assert(kExperts <= moray::cuda::kRoutedExpertsMax);

inline constexpr uint8 kNoSlot = 255;

// In shared memory. Entry d: expert list[d], and per token the slot that it has there.
template <int kTokens>
struct ChosenExperts {
  static constexpr int kListMax = kTokens * kTopK < kExperts ? kTokens * kTopK : kExperts;
  int count;  // of distinct experts
  int warp_counts[32];
  int list[kListMax];
  alignas(16) uint8 slots[kListMax][16];
  int ids[kTokens][kTopK];
  float weights[kTokens][kTopK];
  float shared_weight[kTokens];  // of the shared expert; filled by who needs it
};
// Shared memory that choose_experts needs while it runs.
inline constexpr int kChoiceTableBytes = kExperts * 16;

// Unsigned integers in the order of the logits; 0 is left for "taken", NaN is 1.
__device__ __forceinline__ uint32 order_key(float logit) {
  if (logit != logit) return 1;
  const uint32 bits = __float_as_uint(logit + 0.0f);  // -0 becomes +0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float key_logit(uint32 key) {
  if (key == 1) return bits_float(0x7fc00000u);
  return bits_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// One token's choice by one warp. Weights: softmax over all experts, divided by the sum of the
// chosen if kNormaliseTopK; a NaN among the logits makes all of them NaN.
template <bool kWithWeights>
__device__ __forceinline__ void choose_of_token(const float* logits, int* ids, float* weights,
                                                int lane) {
  constexpr int kPerLane = (kExperts + 31) / 32;
  float logit[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    logit[i] = i * 32 + lane < kExperts ? load_fresh_float(logits + i * 32 + lane) : 0.0f;
  }
  uint32 keys[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) keys[i] = i * 32 + lane < kExperts ? order_key(logit[i]) : 0;
  float mine = 0;  // lane i < kTopK: the i-th chosen logit
#pragma unroll 1
  for (int slot = 0; slot < kTopK; ++slot) {
    uint32 key = 0;
    int index = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (keys[i] > key) {
        key = keys[i];
        index = i;
      }
    }
    const uint32 best = __reduce_max_sync(~0u, key);
    const uint32 id = __reduce_min_sync(~0u, key == best ? index * 32 + lane : ~0u);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i * 32 + lane == id) keys[i] = 0;
    }
    if (lane == slot) {
      ids[slot] = static_cast<int>(id);
      mine = key_logit(best);
    }
  }
  if constexpr (kWithWeights) {
    const float top = __shfl_sync(~0u, mine, 0);
    const float raised = lane < kTopK ? expf(mine - top) : 0.0f;
    float all = 0;
    if (kNormaliseTopK) {
      all = raised;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (logit[i] != logit[i]) all = logit[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (i * 32 + lane < kExperts) all += expf(logit[i] - top);
      }
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) all += __shfl_xor_sync(~0u, all, step);
    if (lane < kTopK) weights[lane] = raised / all;
  }
}

// All threads of the block. Ends with a barrier. One token: entries in slot order; several: by id.
template <bool kWithWeights, int kTokens>
__device__ __forceinline__ void choose_experts(const float* logits, int tokens,
                                               ChosenExperts<kTokens>& chosen, uint8* table) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (tokens == 1) {
    if (warp == 0) {
      choose_of_token<kWithWeights>(logits, chosen.ids[0], chosen.weights[0], lane);
      __syncwarp();
      if (lane < kTopK) {
        chosen.list[lane] = chosen.ids[0][lane];
        uint32* const slots = reinterpret_cast<uint32*>(chosen.slots[lane]);
        slots[0] = 0xffffff00u | lane;
        slots[1] = slots[2] = slots[3] = ~0u;
      }
      if (lane == 0) chosen.count = kTopK;
    }
    __syncthreads();
    return;
  }
  for (int e = threadIdx.x; e < kExperts; e += blockDim.x) {
    reinterpret_cast<Pack16*>(table)[e] = Pack16{{~0u, ~0u, ~0u, ~0u}};
  }
  for (int token = warp; token < tokens; token += warps) {
    choose_of_token<kWithWeights>(logits + token * kExperts, chosen.ids[token],
                                  chosen.weights[token], lane);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * kTopK; i += blockDim.x) {
    const int token = i / kTopK, slot = i % kTopK;
    table[chosen.ids[token][slot] * 16 + token] = static_cast<uint8>(slot);
  }
  __syncthreads();
  // The used experts in order of id: warp w looks at 32 ids in each round.
  int before = 0;
  for (int base = 0; base < kExperts; base += blockDim.x) {
    const int e = base + threadIdx.x;
    Pack16 slots = {{~0u, ~0u, ~0u, ~0u}};
    if (e < kExperts) slots = reinterpret_cast<const Pack16*>(table)[e];
    const bool used = (slots.word[0] & slots.word[1] & slots.word[2] & slots.word[3]) != ~0u;
    const uint32 users = __ballot_sync(~0u, used);
    if (lane == 0) chosen.warp_counts[warp] = __popc(users);
    __syncthreads();
    int at = before + __popc(users & ((1u << lane) - 1));
    for (int w = 0; w < warps; ++w) {
      if (w < warp) at += chosen.warp_counts[w];
      before += chosen.warp_counts[w];
    }
    if (used) {
      chosen.list[at] = e;
      *reinterpret_cast<Pack16*>(chosen.slots[at]) = slots;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) chosen.count = before;
  __syncthreads();
}
