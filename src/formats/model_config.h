// The one typed configuration of a model, whichever family its config.json belongs to.
//
// Invariant: a ModelConfig that parse_model_config returned is consistent in itself (positive
// dimensions, heads that divide, layer_types of num_layers entries, top-k <= experts, ...). Whether
// the tensors agree with it is the model adapter's check. Everything textual that real files nest
// or rename is flattened here, so that no other file knows the spellings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/tensor/dtype.h"

namespace moray {

enum class Family { kQwen3_5Moe, kQwen3Next, kQwen3Moe };
enum class LayerKind : uint8_t { kGatedDelta, kFullAttention };

// RoPE scaling of contexts beyond the trained one ("rope_type": "yarn").
struct YarnScaling {
  double factor = 1;
  int64_t original_max_positions = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  std::optional<double> attention_factor;
};

struct ModelConfig {
  Family family = Family::kQwen3_5Moe;
  std::string model_type;  // as the file says, for messages

  int64_t vocab_rows = 0;  // rows of the embedding and head, padding included
  int64_t hidden = 0;
  int64_t num_layers = 0;
  std::vector<LayerKind> layer_kinds;  // [num_layers]
  double rms_norm_eps = 1e-6;
  bool zero_centred_norms = true;  // y = x * (1 + w); qwen3_moe: y = x * w
  bool tie_word_embeddings = false;
  int64_t max_positions = 0;

  // Full attention.
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;  // first dims of a head that rotate
  double rope_theta = 1e7;
  std::optional<YarnScaling> yarn;
  bool attention_output_gate = true;

  // Gated delta net; all zero when no layer is kGatedDelta.
  int64_t gdn_key_heads = 0;
  int64_t gdn_value_heads = 0;
  int64_t gdn_key_dim = 0;    // of one head
  int64_t gdn_value_dim = 0;  // of one head
  int64_t gdn_conv_taps = 0;

  // Mixture of experts (every layer).
  int64_t num_experts = 0;
  int64_t top_k = 0;
  int64_t expert_dim = 0;         // moe_intermediate_size
  int64_t shared_expert_dim = 0;  // 0: no shared expert
  bool normalise_top_k = true;

  int64_t mtp_layers = 0;  // 0 or 1: what the config promises; re-saves may lack the tensors

  // config.json's own stop tokens: often only one of the set. GenerationDefaults has the full one.
  std::vector<int32_t> eos_token_ids;

  // Block FP8 of the official repositories; nullopt for BF16 checkpoints.
  bool block_fp8 = false;
  std::vector<std::string> not_converted;  // quantization_config.modules_to_not_convert
  DType dtype = DType::kBF16;              // "dtype"/"torch_dtype" of unquantised tensors

  int64_t count_layers(LayerKind kind) const;
  int64_t gdn_key_total() const { return gdn_key_heads * gdn_key_dim; }
  int64_t gdn_value_total() const { return gdn_value_heads * gdn_value_dim; }
  int64_t gdn_conv_channels() const { return 2 * gdn_key_total() + gdn_value_total(); }
};

std::string_view family_name(Family family);

// Parses the text of a config.json. `path` is for messages only. Errors: kInvalidFile naming each
// field, what was found and what was expected, all that can be told at once joined by "; ";
// kUnsupported for other architectures (listing the supported ones) and for features of these
// families that no published model uses (biases, dense layers, sliding windows, other scalings).
Result<ModelConfig> parse_model_config(std::string_view json, const std::string& path);

// What generation_config.json adds; every field optional in the file.
struct GenerationDefaults {
  std::vector<int32_t> eos_token_ids;
  std::optional<bool> do_sample;  // false: greedy is the model's own default
  std::optional<double> temperature, top_p, min_p, repetition_penalty, presence_penalty;
  std::optional<int64_t> top_k;
};
// Errors: kInvalidFile naming each field. `path` is for messages only.
Result<GenerationDefaults> parse_generation_config(std::string_view json, const std::string& path);

}  // namespace moray
