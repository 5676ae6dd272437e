// The step's own tokens: queries, new keys and values, prepared by every block that needs them.
#pragma once

#include "attention_pass.cuh"

namespace moray::cuda {

struct Preparation {
  int kv_head, position;
  int first_token, columns;      // of the run
  int first_column;              // of the pass
  int new_rows;                  // the step's tokens if this block sees their keys, else 0
  int append_begin, append_end;  // positions to write to the cache, besides shared memory
};

__device__ __forceinline__ void load_head(const float* from, float (&value)[kHeadLaneDims]) {
#pragma unroll
  for (int i = 0; i < kHeadLaneDims; ++i) value[i] = from[threadIdx.x % 32 + 32 * i];
}

template <int N>
__device__ __forceinline__ void store_query(Shared<N>& shared, int column,
                                            const float (&value)[kHeadLaneDims]) {
#pragma unroll
  for (int i = 0; i < kHeadLaneDims; ++i) {
    shared.loop.queries[column][threadIdx.x % 32 + 32 * i] = float_bf16(value[i]);
  }
}

template <int N>
__device__ __forceinline__ void store_row(const AttentionStepParams& params, Shared<N>& shared,
                                          const Preparation& p, int token,
                                          const float (&key)[kHeadLaneDims],
                                          const float (&value)[kHeadLaneDims]) {
  const int row = p.position + token, lane = threadIdx.x % 32;
  const long long to = static_cast<long long>(p.kv_head) * params.cache.capacity + row;
  const bool append = row >= p.append_begin && row < p.append_end;
  CacheElement keys[kHeadLaneDims], values[kHeadLaneDims];
  const float key_scale = to_cache(key, keys), value_scale = to_cache(value, values);
#pragma unroll
  for (int i = 0; i < kHeadLaneDims; ++i) {
    const int d = lane + 32 * i;
    shared.new_keys[token][d] = keys[i];
    shared.new_values[token][d] = values[i];
    if (!append) continue;
    static_cast<CacheElement*>(params.cache.keys)[to * kHeadDim + d] = keys[i];
    static_cast<CacheElement*>(params.cache.values)[to * kHeadDim + d] = values[i];
  }
  if (!kKvFp8 || lane != 0) return;
  shared.new_scales[0][token] = key_scale;
  shared.new_scales[1][token] = value_scale;
  if (!append) return;
  params.cache.key_scales[to] = key_scale;
  params.cache.value_scales[to] = value_scale;
}

// A warp takes a column's query (zero beyond the run's) and a token's key and value at a time; all
// three are requested before the first is used.
template <int N>
__device__ __forceinline__ void prepare(const AttentionStepParams& params, Shared<N>& shared,
                                        const Preparation& p) {
  const int warp = threadIdx.x / 32;
  float* const scratch = shared.loop.scratch[warp];
  for (int i = warp; i < 8 * N || i < p.new_rows; i += kStepWarps) {
    const int column = p.first_column + i, token = p.first_token + column / kGroup;
    const int head = p.kv_head * kGroup + column % kGroup;
    const bool has_query = i < 8 * N && column < p.columns, has_row = i < p.new_rows;
    float query[kHeadLaneDims] = {}, key[kHeadLaneDims], value[kHeadLaneDims];
    if (has_query) {
      load_head(params.q_gate + static_cast<long long>(token * kHeads + head) * kQueryStride,
                query);
    }
    if (has_row) {
      const long long from = static_cast<long long>(i * kKvHeads + p.kv_head) * kHeadDim;
      load_head(params.k + from, key);
      load_head(params.v + from, value);
    }
    if (has_query) {
      prepare_head(query, params.weights.q_norm, params.weights.inv_freq, p.position + token,
                   scratch);
    }
    if (i < 8 * N) store_query(shared, i, query);
    if (!has_row) continue;
    prepare_head(key, params.weights.k_norm, params.weights.inv_freq, p.position + i, scratch);
    store_row(params, shared, p, i, key, value);
  }
}

}  // namespace moray::cuda
