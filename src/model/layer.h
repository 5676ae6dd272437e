// One decoder layer and the head, shared by the trunk (forward.cpp) and the MTP head (mtp.cpp).
//
// Invariant: everything a Pass names is constant during a call; a layer reads and updates
// workspace.residual [tokens, H] and advances its own cache only.
#pragma once

#include "src/model/state.h"
#include "src/model/weights.h"
#include "src/model/workspace.h"

namespace moray {

struct Pass {
  const Weights& weights;
  const cpu::Context& context;
  Workspace::Impl& workspace;
  State::Impl& state;
  int64_t tokens;
  int64_t position;  // of the first token, in the cache of the layers that run
  Precision precision;
};

// residual += mixer(norm(residual)); residual += experts(norm(residual)). `cache` is the index
// among the state's KV caches or delta states, by the layer's kind.
void run_layer(const Pass& pass, const LayerWeights& layer, size_t cache);

// Final norm of the residual rows and the head's logits. With `hidden`, [tokens, H], all rows are
// normed and kept; logits [logit_rows, V] of the last rows, if any are asked for.
void run_head(const Pass& pass, std::span<const float> norm, int64_t logit_rows, float* logits,
              float* hidden);

}  // namespace moray
