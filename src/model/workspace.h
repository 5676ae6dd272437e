// The named buffers of a forward pass.
//
// Invariant: sized once for block_tokens tokens; nothing here outlives a call with meaning, so one
// Workspace serves any number of sequences in turn.
#pragma once

#include <vector>

#include "src/model/lazy_bytes.h"
#include "src/model/model.h"

namespace moray {

struct Workspace::Impl {
  // Sizes only; workspace.cpp fills in the buffers.
  Impl(int64_t block_tokens, int64_t capacity, int threads);

  int64_t block_tokens;
  int64_t capacity;
  int threads;

  // All [block_tokens, ...]; widths of the two mixers share what is never live together.
  std::span<float> residual;        // [H] the stream between layers
  std::span<float> x;               // [H] normed input of a mixer, the experts or the head
  std::span<float> mixed_in;        // [C] of a delta layer, or query and gate [2 n d]
  std::span<float> z;               // [nv dv], or keys [n_kv d]
  std::span<float> b;               // [nv], or values [n_kv d]
  std::span<float> a;               // [nv]
  std::span<float> mixed_out;       // [nv dv] or [n d]
  std::span<float> pair;            // [2H] MTP: normed embedding and hidden
  std::span<float> expert_weights;  // [top_k]
  std::span<float> shared_weight;   // [1]
  std::span<int32_t> expert_ids;    // [top_k]
  std::span<float> op;              // what ops ask for, the largest of them
  LazyBytes memory;
};

// An op's arguments with the fields that a config decides; for sizing and as a start for calls.
GdnArgs delta_arguments(const ModelConfig& config);
AttentionArgs attention_arguments(const ModelConfig& config);

}  // namespace moray
