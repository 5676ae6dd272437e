// The combination of splits by the blocks that arrive last.
#pragma once

#include "attention_pass.cuh"

namespace moray::cuda {

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

__device__ __forceinline__ void add_weighted(float4& sum, float4 part, float weight) {
  sum.x = __fmaf_rn(part.x, weight, sum.x);
  sum.y = __fmaf_rn(part.y, weight, sum.y);
  sum.z = __fmaf_rn(part.z, weight, sum.z);
  sum.w = __fmaf_rn(part.w, weight, sum.w);
}

// out = sums / total * sigmoid(gate) of one column, the splits' sums added in a fixed order: thread
// (group, quad) takes four dims of every kGroups-th split, then the groups are added.
template <int N>
__device__ __forceinline__ void finish_column(const AttentionStepParams& params, Shared<N>& shared,
                                              int kv_head, int position, int column) {
  constexpr int kQuads = kHeadDim / 4, kGroups = kStepThreads / kQuads;
  const int lane = threadIdx.x % 32, token = column / kGroup;
  const int head = kv_head * kGroup + column % kGroup;
  const int splits = splits_of(position + token);
  const long long index = partial_index(column, kv_head, 0);
  float2 stats[(kSplits + 31) / 32];
  float most = kLowestScore, total = 0;
#pragma unroll
  for (int i = 0; i < (kSplits + 31) / 32; ++i) {
    const int split = lane + 32 * i;
    stats[i] = split < splits ? load_shared_pair(partial_stats(params.partials, index + split))
                              : float2{kLowestScore, 0};
    most = fmaxf(most, stats[i].x);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
  }
#pragma unroll
  for (int i = 0; i < (kSplits + 31) / 32; ++i) {
    const float weight = exp2_fast(__fmul_rn(__fsub_rn(stats[i].x, most), kScoreScale));
    total = __fmaf_rn(stats[i].y, weight, total);
    if (threadIdx.x < 32 && lane + 32 * i < splits) shared.split_weight[lane + 32 * i] = weight;
  }
  total = warp_sum(total);
  __syncthreads();
  const int quad = threadIdx.x % kQuads, group = threadIdx.x / kQuads;
  float4 sum = {0, 0, 0, 0};
  constexpr int kBatch = 16;  // loads in flight of a thread
  for (int first = group; first < splits; first += kBatch * kGroups) {
    float4 part[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int split = first + i * kGroups;
      part[i] = {0, 0, 0, 0};
      if (split < splits) {
        part[i] = load_shared_work(partial_sums(params.partials, index + split) + 4 * quad);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int split = first + i * kGroups;
      if (split < splits) add_weighted(sum, part[i], shared.split_weight[split]);
    }
  }
  shared.combine[threadIdx.x] = sum;
  __syncthreads();
  const float* const parts = reinterpret_cast<const float*>(shared.combine);
  for (int d = threadIdx.x; d < kHeadDim; d += kStepThreads) {
    float value = 0;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) value += parts[i * kHeadDim + d];
    value /= total;
    const long long at = static_cast<long long>(token * kHeads + head);
    if (kHasGate) {
      const float gate = params.q_gate[at * kQueryStride + kHeadDim + d];
      value /= one_plus_exp(-gate);
    }
    params.out[at * kHeadDim + d] = float_bf16(value);
  }
  __syncthreads();
}

// The blocks of a KV head that arrive last share the combination: each waits for the others (all
// are running or done: the grid fits the device) and takes every so manieth column.
constexpr int kFinishers = 16;

template <int N>
__device__ __forceinline__ void finish_columns(const AttentionStepParams& params, Shared<N>& shared,
                                               int kv_head, int position, int count, int arriving) {
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

}  // namespace moray::cuda
