// The weights of a loaded model as plain data: views a layer's ops are called with.
//
// Invariant: every view points into `checkpoint`'s mapping, `arena` or `storage`, all kept alive
// here, and has the shape that `config` promises. Families differ in how they bind
// (bind_weights.h); after binding they share this struct and forward.cpp. A copy shares the
// bytes and is cheap, so a test may change a copy's views without touching the model.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/formats/checkpoint.h"
#include "src/kernels/ops.h"
#include "src/model/lazy_bytes.h"

namespace moray {

// Gated full attention. With an output gate, q holds per head d query rows, then d gate rows.
struct AttentionWeights {
  MatrixView q;                   // [n d (2 n d with gate), H]
  MatrixView k;                   // [n_kv d, H]
  MatrixView v;                   // [n_kv d, H]
  MatrixView o;                   // [H, n d]
  std::span<const float> q_norm;  // [d]
  std::span<const float> k_norm;  // [d]
};

// Gated delta net, rows of qkv and conv in the order q | k | v.
struct DeltaWeights {
  MatrixView qkv;                  // [C, H]
  MatrixView z;                    // [nv dv, H]
  MatrixView b;                    // [nv, H]
  MatrixView a;                    // [nv, H]
  MatrixView out;                  // [H, nv dv]
  std::span<const float> conv;     // [C, taps], last tap is the current token
  std::span<const float> a_log;    // [nv]
  std::span<const float> dt_bias;  // [nv]
  std::span<const float> norm;     // [dv], plain (no +1) in every family
};

struct MoeWeights {
  MatrixView gate;         // [E, H]
  MatrixView shared_gate;  // [1, H]; empty without a shared expert
  std::vector<ExpertView> experts;
  ExpertView shared;
};

// One decoder layer; `kind` says which of the two mixers is bound.
struct LayerWeights {
  LayerKind kind = LayerKind::kFullAttention;
  std::span<const float> input_norm;  // [H]
  std::span<const float> post_norm;   // [H], between mixer and experts
  AttentionWeights attention;
  DeltaWeights delta;
  MoeWeights moe;
};

// The multi-token-prediction head: one full-attention layer over (embedding, hidden); embedding
// table and lm_head are the trunk's.
struct MtpWeights {
  MatrixView fc;                          // [H, 2H], embedding half first
  std::span<const float> embedding_norm;  // [H]
  std::span<const float> hidden_norm;     // [H]
  std::span<const float> norm;            // [H]
  LayerWeights layer;
};

struct Weights {
  ModelConfig config;    // as the file says, but mtp_layers is 0 where the tensors are absent
  MatrixView embedding;  // [V, H]
  MatrixView head;       // [V, H]; the embedding itself when tied and not quantised
  std::span<const float> final_norm;  // [H]
  std::vector<LayerWeights> layers;
  std::optional<MtpWeights> mtp;
  std::vector<float> inv_freq;     // [rotary_dim / 2]
  float rope_scale = 1;            // YaRN's factor on cos and sin
  std::vector<std::string> notes;  // what a user should know, one line each

  std::shared_ptr<const Checkpoint> checkpoint;
  std::shared_ptr<const LazyBytes> arena;  // the matrices, if they were copied from the files
  std::shared_ptr<std::vector<std::unique_ptr<float[]>>> storage;
  std::shared_ptr<const LazyBytes> head_bytes;  // of a head quantised while loading

  bool has_own_head() const { return head.data != embedding.data; }
};

// As the checkpoint has it, or E4M3 with scales of 128x128 blocks (fp8_head.h).
enum class HeadFormat : uint8_t { kPublished, kFp8 };

}  // namespace moray
