// Parameter structs of the gated delta net's kernels; formula and state in src/kernels/ops.h.
//
// Pointers are device addresses. With C = 2 * key_heads * key_dim + value_heads * value_dim
// channels (q | k | v), arrays are dense, the last dimension fastest. None needs clearing before
// the first use but `arrivals`.
#pragma once

#include "src/kernels/cuda/params.h"

namespace moray::cuda {

struct DeltaWeights {
  const float* conv;     // [C, taps]
  const float* a_log;    // [value_heads]
  const float* dt_bias;  // [value_heads]
  const float* norm;     // [value_dim]
};

// GdnStateView of ops.h in device memory, element for element: a copy moves a state between
// machines. The number of tokens it has seen is Step.position or DeltaPrefillParams::position.
struct DeltaState {
  float* conv_tail;  // [taps - 1 + kDeltaChunkTokens, C]
  float* s;          // [value_heads, key_dim, value_dim], 16-byte aligned
  float* keys;       // [key_heads, kDeltaChunkTokens, key_dim]
  float* writes;     // [value_heads, kDeltaChunkTokens, value_dim]
  float* log_decay;  // [value_heads, kDeltaChunkTokens]
};

struct DeltaStepParams {
  const Step* step;
  const float* qkv;  // [tokens, C], as the other three from this step's projections
  const float* z;    // [tokens, value_heads * value_dim]
  const float* b;    // [tokens, value_heads]
  const float* a;    // [tokens, value_heads]
  DeltaWeights weights;
  DeltaState state;
  int* arrivals;        // [key_heads], zero before the first step and after every one
  unsigned short* out;  // BF16 [tokens, value_heads * value_dim]
  int tokens;           // the step's count is at most this
};

struct DeltaPrefillParams {
  const unsigned short* qkv;  // BF16 [tokens, C]
  const unsigned short* z;    // BF16 [tokens, value_heads * value_dim]
  const float* b;             // [tokens, value_heads]
  const float* a;             // [tokens, value_heads]
  DeltaWeights weights;
  DeltaState state;
  char* workspace;      // 256-byte aligned, delta_prefill_workspace_bytes(); shared by all layers
  unsigned short* out;  // BF16 [tokens, value_heads * value_dim]
  int position;         // of the first token; the state has seen this many
  int tokens;           // at least 1
};

}  // namespace moray::cuda
