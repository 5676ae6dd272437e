// Every matrix of a model's trunk with its place, for what treats all of them alike: making random
// ones, laying them out on a device.
//
// Invariant: the order is that of a forward pass, absent matrices are left out, a tied head is
// listed once (as the embedding), and the MTP head is not listed.
#pragma once

#include <cstdint>
#include <vector>

#include "src/model/weights.h"

namespace moray {

enum class MatrixPart : uint8_t {
  kEmbedding,
  kQuery,  // with the output gate's rows
  kKey,
  kValue,
  kAttentionOut,
  kDeltaQkv,
  kDeltaZ,
  kDeltaB,
  kDeltaA,
  kDeltaOut,
  kRouter,
  kSharedGate,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kSharedExpertGate,
  kSharedExpertUp,
  kSharedExpertDown,
  kHead,
};

struct MatrixPlace {
  MatrixView* view;
  MatrixPart part;
  int64_t layer = 0;
  int64_t expert = 0;  // of the three kExpert* parts
};

inline std::vector<MatrixPlace> list_matrices(Weights& weights) {
  std::vector<MatrixPlace> all;
  const auto add = [&](MatrixView& view, MatrixPart part, size_t layer = 0, size_t expert = 0) {
    if (view.empty()) return;
    all.push_back({&view, part, static_cast<int64_t>(layer), static_cast<int64_t>(expert)});
  };
  add(weights.embedding, MatrixPart::kEmbedding);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    LayerWeights& layer = weights.layers[i];
    AttentionWeights& attention = layer.attention;
    DeltaWeights& delta = layer.delta;
    add(attention.q, MatrixPart::kQuery, i);
    add(attention.k, MatrixPart::kKey, i);
    add(attention.v, MatrixPart::kValue, i);
    add(attention.o, MatrixPart::kAttentionOut, i);
    add(delta.qkv, MatrixPart::kDeltaQkv, i);
    add(delta.z, MatrixPart::kDeltaZ, i);
    add(delta.b, MatrixPart::kDeltaB, i);
    add(delta.a, MatrixPart::kDeltaA, i);
    add(delta.out, MatrixPart::kDeltaOut, i);
    add(layer.moe.gate, MatrixPart::kRouter, i);
    add(layer.moe.shared_gate, MatrixPart::kSharedGate, i);
    for (size_t e = 0; e < layer.moe.experts.size(); ++e) {
      ExpertView& expert = layer.moe.experts[e];
      add(expert.gate, MatrixPart::kExpertGate, i, e);
      add(expert.up, MatrixPart::kExpertUp, i, e);
      add(expert.down, MatrixPart::kExpertDown, i, e);
    }
    add(layer.moe.shared.gate, MatrixPart::kSharedExpertGate, i);
    add(layer.moe.shared.up, MatrixPart::kSharedExpertUp, i);
    add(layer.moe.shared.down, MatrixPart::kSharedExpertDown, i);
  }
  if (weights.has_own_head()) add(weights.head, MatrixPart::kHead);
  return all;
}

}  // namespace moray
