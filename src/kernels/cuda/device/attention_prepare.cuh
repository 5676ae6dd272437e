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

// Into the first-level cache, for write_quad at the block's end.
__device__ __forceinline__ void prefetch_gate(const float* gate) {
  const int dim = threadIdx.x % 32 * 32;  // 128 bytes a lane
  if (dim < kHeadDim) asm volatile("prefetch.global.L1 [%0];" ::"l"(gate + dim));
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

// A warp takes every eighth column's query (zero beyond the run's), all requested at once, then
// every eighth token's key and value, the first requested with the queries.
template <int N>
__device__ __forceinline__ void prepare(const AttentionStepParams& params, Shared<N>& shared,
                                        const Preparation& p) {
  const int warp = threadIdx.x / 32;
  float* const scratch = shared.loop.scratch[warp];
  const auto token_of = [&](int column) { return p.first_token + column / kGroup; };
  const auto load_row = [&](int token, float(&key)[kHeadLaneDims], float(&value)[kHeadLaneDims]) {
    const long long from = static_cast<long long>(token * kKvHeads + p.kv_head) * kHeadDim;
    load_head(params.k + from, key);
    load_head(params.v + from, value);
  };
  float query[N][kHeadLaneDims] = {}, key[kHeadLaneDims], value[kHeadLaneDims];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int column = p.first_column + 8 * j + warp;
    if (column >= p.columns) continue;
    const int head = p.kv_head * kGroup + column % kGroup;
    const float* const from =
        params.q_gate + static_cast<long long>(token_of(column) * kHeads + head) * kQueryStride;
    load_head(from, query[j]);
    if (kHasGate) prefetch_gate(from + kHeadDim);
  }
  if (warp < p.new_rows) load_row(warp, key, value);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int column = p.first_column + 8 * j + warp;
    if (column < p.columns) {
      prepare_head(query[j],
                   head_tables(params.weights.q_norm, params.weights.inv_freq,
                               p.position + token_of(column)),
                   scratch);
    }
    store_query(shared, 8 * j + warp, query[j]);
  }
  for (int token = warp; token < p.new_rows; token += kStepWarps) {
    if (token != warp) load_row(token, key, value);
    prepare_head(key,
                 head_tables(params.weights.k_norm, params.weights.inv_freq, p.position + token),
                 scratch);
    store_row(params, shared, p, token, key, value);
  }
}

}  // namespace moray::cuda
