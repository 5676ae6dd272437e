// The step's own tokens: queries, new keys and values, prepared by every block that needs them.
#pragma once

#include "attention_pass.cuh"

namespace moray::cuda {

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
  for (int c = warp; c < 8 * N; c += kStepWarps) {
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
  for (int token = warp; token < count; token += kStepWarps) {
    const int row = position + token;
    const long long from = static_cast<long long>(token * kKvHeads + kv_head) * kHeadDim;
    const long long to = (static_cast<long long>(kv_head) * params.cache.capacity + row) * kHeadDim;
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

}  // namespace moray::cuda
