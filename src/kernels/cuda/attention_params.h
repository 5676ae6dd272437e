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

// Shared memory of a block of the step kernel that takes `columns` query columns at a time:
// queries, weights in two parts, largest scores, running totals and scratch, later overlaid by
// sums; totals, split weights and the step's own keys and values.
constexpr int attention_step_shared_bytes(int head_dim, int splits, int columns) {
  const int running = columns > 8 ? 512 * columns : 2048;
  const int loop = columns * ((head_dim + 32) * 2 + 4 * (kAttentionTileKeys + 16) + 32) + running +
                   32 * head_dim;
  const int sums = columns * 2048;  // at most 512 floats a column
  return (loop > sums ? loop : sums) + columns * 36 + splits * 4 + 4 * kStepTokensMax * head_dim +
         8 * kStepTokensMax + 64;
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

// Prefill: keys of a tile, query rows (a token's head each) of a block, and tiles of keys and
// values in shared memory at once. `arch` is 89, 90 or 120. At head_dim 256 a block takes 96 KiB of
// shared memory where an architecture allows 99, and 192 KiB on sm_90.
inline constexpr int kPrefillKeys = 64;
constexpr int attention_prefill_rows(int arch) {
  return arch == 90 ? 128 : 64;
}
constexpr int attention_prefill_buffers(int arch) {
  return arch == 90 ? 2 : 1;
}
constexpr int attention_prefill_shared_bytes(int arch, int head_dim) {
  return 2 * head_dim *
         (attention_prefill_rows(arch) + 2 * attention_prefill_buffers(arch) * kPrefillKeys);
}

// Likewise for the kernel on warpgroup products (sm_90a, head_dim 128 or 256): two tiles each of
// keys and values, and room to align them to 1024 bytes.
inline constexpr int kWgmmaRows = 128;
constexpr int attention_wgmma_keys(int head_dim) {
  return head_dim == 256 ? 64 : 128;
}
constexpr int attention_wgmma_shared_bytes(int head_dim) {
  return 2 * head_dim * (kWgmmaRows + 4 * attention_wgmma_keys(head_dim)) + 1024;
}

struct AttentionPrefillParams {
  // BF16 [tokens, heads * head_dim * (kHasGate ? 2 : 1)]; the query half of every head is replaced
  // by its normed, rotated values.
  unsigned short* q_gate;
  const unsigned short* k;  // BF16 [tokens, kv_heads * head_dim]
  const unsigned short* v;  // BF16 [tokens, kv_heads * head_dim]
  AttentionWeights weights;
  KvCache cache;
  KvCache unpacked = {};  // kKvFp8: room for BF16 rows [0, position + tokens), without scales
  int position;           // of the first token; cache rows below it are valid
  int tokens;
  unsigned short* out;  // BF16 [tokens, heads * head_dim]
};

}  // namespace moray::cuda
