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
// among the state's KV caches or delta states, by the layer's kind. The cache sees all tokens, but
// only the last `rows_kept` are carried through the experts, to the front of the residual: a last
// layer need not finish tokens that nobody asks about.
void run_layer(const Pass& pass, const LayerWeights& layer, size_t cache, int64_t rows_kept);

// What a caller wants of the rows that the last layer kept, in residual [rows, H].
struct HeadOutputs {
  int64_t rows;
  int64_t logit_rows;  // the last of them
  float* logits;       // [logit_rows, V]
  float* hidden;       // [rows, H] after the norm; may be null
};
void run_head(const Pass& pass, std::span<const float> norm, const HeadOutputs& outputs);

}  // namespace moray
