// What the attention kernels and their launchers agree on: parameters, tile sizes, buffer sizes.
//
// Included by both compilers, so only plain types here. The launchers and the contract of the ops
// are in attention.h, the formula in src/kernels/ops.h (AttentionArgs).
#pragma once

#include "params.h"

namespace moray::cuda {

// Keys and values of one layer, [kv_head, capacity, head_dim] each, 256-byte aligned. BF16, or with
// kKvFp8 E4M3 codes times a scale per position and head: key_scales [kv_head, capacity] FP32.
struct KvCache {
  void* keys;
  void* values;
  float* key_scales;    // null unless kKvFp8
  float* value_scales;  // null unless kKvFp8
  int capacity;
};

// Of one layer, all FP32.
struct AttentionWeights {
  const float* q_norm;    // [head_dim]
  const float* k_norm;    // [head_dim]
  const float* inv_freq;  // [rotary_dim / 2]
};

// Keys that a block of the step kernel takes at a time; splits end on multiples of it.
inline constexpr int kAttentionTileKeys = 128;

// Splits of the cache per KV head, at most: one block for each multiprocessor.
constexpr int attention_splits(int multiprocessors, int kv_heads) {
  return multiprocessors > kv_heads ? multiprocessors / kv_heads : 1;
}

// Tiles a split of a sequence of `tiles` tiles holds: a function of the token's position alone, so
// that its result depends on nothing else in the step.
constexpr int attention_split_tiles(int tiles, int splits) {
  return (tiles + splits - 1) / splits;
}

// Floats of a partial result (a query head over one split): sums of head_dim, largest score, total.
constexpr int attention_partial_floats(int head_dim) {
  return head_dim + 2;
}

struct AttentionStepParams {
  const Step* step;
  const float* q_gate;  // [count, heads * head_dim * (kHasGate ? 2 : 1)]
  const float* k;       // [count, kv_heads * head_dim]
  const float* v;       // [count, kv_heads * head_dim]
  AttentionWeights weights;
  KvCache cache;
  float* partials;      // attention_step_workspace_bytes(); content of no meaning between calls
  unsigned* arrivals;   // [2 * kv_heads], zero before the first call, zero again after each
  unsigned short* out;  // BF16 [count, heads * head_dim]
};

// Query rows (a token's head) and keys of a tile of the prefill kernel.
inline constexpr int kPrefillKeys = 64;
constexpr int attention_prefill_rows(int arch) {
  return arch == 900 ? 128 : 64;
}

struct AttentionPrefillParams {
  // BF16 [tokens, heads * head_dim * (kHasGate ? 2 : 1)]; the query half of every head is replaced
  // by its normed, rotated values.
  unsigned short* q_gate;
  const unsigned short* k;  // BF16 [tokens, kv_heads * head_dim]
  const unsigned short* v;  // BF16 [tokens, kv_heads * head_dim]
  AttentionWeights weights;
  KvCache cache;
  int position;  // of the first token; cache rows below it are valid
  int tokens;
  unsigned short* out;  // BF16 [tokens, heads * head_dim]
};

}  // namespace moray::cuda
