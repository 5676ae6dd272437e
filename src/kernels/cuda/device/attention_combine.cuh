// The combination of splits, by the blocks of a KV head that arrive last.
//
// With m, l and o the largest score, total and sums of a split and M the largest of all m:
//   out = sum_s exp(m_s - M) o_s / sum_s exp(m_s - M) l_s  [* sigmoid(gate)]
// Each of the last kFinishersMax arrivals waits for the others, which all run or are done (the grid
// fits the device), and takes every so manieth column. Which of two orders of summation a column
// gets depends on its own number of splits.
#pragma once

#include "attention_pass.cuh"

namespace moray::cuda {

inline constexpr int kFinishersMax = 32;
inline constexpr int kQuads = kHeadDim / 4;  // threads that hold a column, 4 dims each
inline constexpr int kColumnGroups = kStepThreads / kQuads;
inline constexpr int kFewSplits = 8;  // that one group combines by itself

// What other blocks wrote in this launch: past the first-level cache.
__device__ __forceinline__ float4 load_shared_quad(const float* at) {
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

__device__ __forceinline__ float split_weight(float largest, float most) {
  return exp2_fast(__fmul_rn(__fsub_rn(largest, most), kScoreScale));
}
__device__ __forceinline__ void add_weighted(float4& sum, float4 part, float weight) {
  sum.x = __fmaf_rn(part.x, weight, sum.x);
  sum.y = __fmaf_rn(part.y, weight, sum.y);
  sum.z = __fmaf_rn(part.z, weight, sum.z);
  sum.w = __fmaf_rn(part.w, weight, sum.w);
}

// A few splits: the threads of one group load them all at once.
__device__ __forceinline__ void combine_few(const AttentionStepParams& params, int kv_head,
                                            int column, int splits) {
  const int quad = threadIdx.x % kQuads;
  const long long index = partial_index(column, kv_head, 0);
  float4 part[kFewSplits];
  float2 stats[kFewSplits];
#pragma unroll
  for (int s = 0; s < kFewSplits; ++s) {
    part[s] = {0, 0, 0, 0};
    stats[s] = {kLowestScore, 0};
    if (s >= splits) continue;
    part[s] = load_shared_quad(partial_sums(params.partials, index + s) + 4 * quad);
    stats[s] = load_shared_pair(partial_stats(params.partials, index + s));
  }
  float most = stats[0].x, total = 0;
  float4 sum = {0, 0, 0, 0};
#pragma unroll
  for (int s = 1; s < kFewSplits; ++s) most = fmaxf(most, stats[s].x);
#pragma unroll
  for (int s = 0; s < kFewSplits; ++s) {
    const float weight = split_weight(stats[s].x, most);
    total = __fmaf_rn(stats[s].y, weight, total);
    add_weighted(sum, part[s], weight);
  }
  write_quad(params, kv_head, column, 4 * quad, sum, total);
}

// Many splits: the whole block. Group i sums splits i, i + kColumnGroups, ..; then the groups are
// added in order. The first batch of sums is requested before the weights are known.
template <int N>
__device__ __forceinline__ void combine_many(const AttentionStepParams& params, Shared<N>& shared,
                                             int kv_head, int column, int splits) {
  constexpr int kRounds = (kSplits + kColumnGroups - 1) / kColumnGroups;
  constexpr int kBatches = (kRounds + 19) / 20, kBatch = (kRounds + kBatches - 1) / kBatches;
  constexpr int kLaneSplits = (kSplits + 31) / 32;
  const int lane = threadIdx.x % 32, quad = threadIdx.x % kQuads, group = threadIdx.x / kQuads;
  const long long index = partial_index(column, kv_head, 0);
  float4 part[kBatch];
  const auto load_batch = [&](int first) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int split = first + i * kColumnGroups;
      part[i] = {0, 0, 0, 0};
      if (split < splits) {
        part[i] = load_shared_quad(partial_sums(params.partials, index + split) + 4 * quad);
      }
    }
  };
  float2 stats[kLaneSplits];
#pragma unroll
  for (int i = 0; i < kLaneSplits; ++i) {
    const int split = lane + 32 * i;
    stats[i] = {kLowestScore, 0};
    if (split < splits) stats[i] = load_shared_pair(partial_stats(params.partials, index + split));
  }
  load_batch(group);
  float most = kLowestScore, total = 0;
#pragma unroll
  for (int i = 0; i < kLaneSplits; ++i) most = fmaxf(most, stats[i].x);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
  }
#pragma unroll
  for (int i = 0; i < kLaneSplits; ++i) {
    const float weight = split_weight(stats[i].x, most);
    total = __fmaf_rn(stats[i].y, weight, total);
    if (threadIdx.x < 32 && lane + 32 * i < splits) shared.split_weight[lane + 32 * i] = weight;
  }
  total = warp_sum(total);
  __syncthreads();
  float4 sum = {0, 0, 0, 0};
  for (int first = group; first < splits; first += kBatch * kColumnGroups) {
    if (first != group) load_batch(first);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int split = first + i * kColumnGroups;
      if (split < splits) add_weighted(sum, part[i], shared.split_weight[split]);
    }
  }
  shared.combine[threadIdx.x] = sum;
  __syncthreads();
  if (group == 0) {
    sum = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kColumnGroups; ++i) {
      add_weighted(sum, shared.combine[i * kQuads + quad], 1.0f);
    }
    write_quad(params, kv_head, column, 4 * quad, sum, total);
  }
  __syncthreads();
}

template <int N>
__device__ __forceinline__ void combine_splits(const AttentionStepParams& params, Shared<N>& shared,
                                               int kv_head, int position, int count, int arriving) {
  const int columns = count * kGroup;
  const int finishers = min(min(arriving, columns), kFinishersMax);
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
  const auto splits_at = [&](int column) { return splits_of(position + column / kGroup); };
  for (int column = rank; column < columns; column += finishers) {
    const int splits = splits_at(column);
    if (splits > kFewSplits) combine_many(params, shared, kv_head, column, splits);
  }
  const int stride = finishers * kColumnGroups;
  for (int column = rank + threadIdx.x / kQuads * finishers; column < columns; column += stride) {
    const int splits = splits_at(column);
    if (splits <= kFewSplits) combine_few(params, kv_head, column, splits);
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
