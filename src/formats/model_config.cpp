// config.json of the three families into one ModelConfig: spellings, absent fields, ranges.
//
// Ranges are wide enough for any model of these families and narrow enough that no product of two
// or three dimensions overflows 63 bits. Values absent from real files follow the families' own
// model code (transformers configuration_qwen3_5_moe.py, _qwen3_next.py, _qwen3_moe.py).
// Rotary and quantisation parts are in model_config_rope.cpp and model_config_fp8.cpp.
#include "src/formats/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "src/formats/json_fields.h"
#include "src/formats/model_config_parts.h"

namespace moray {
namespace {

constexpr size_t kDepthMax = 64;

struct FamilyNames {
  std::string_view model_type;
  std::string_view architecture;
  Family family;
};
constexpr std::array kFamilies = {
    FamilyNames{"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", Family::kQwen3_5Moe},
    FamilyNames{"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", Family::kQwen3_5Moe},
    FamilyNames{"qwen3_next", "Qwen3NextForCausalLM", Family::kQwen3Next},
    FamilyNames{"qwen3_moe", "Qwen3MoeForCausalLM", Family::kQwen3Moe},
};

std::string supported_list(std::string_view FamilyNames::*column) {
  std::vector<std::string_view> names;
  for (const FamilyNames& names_of : kFamilies) names.push_back(names_of.*column);
  return fmt::format("one of {}", fmt::join(names, ", "));
}

const FamilyNames* find_family(std::string_view FamilyNames::*column, std::string_view name) {
  for (const FamilyNames& names : kFamilies) {
    if (names.*column == name) return &names;
  }
  return nullptr;
}

// model_type decides; without one the first architecture does. Both must be of the same family.
void read_family(const JsonFields& top, ModelConfig& config) {
  const auto model_type = top.string("model_type");
  const auto architectures = top.strings("architectures");
  const bool named = architectures && !architectures->empty();
  if (!model_type && !named) {
    top.complain("model_type", "nothing", supported_list(&FamilyNames::model_type));
    return;
  }
  const FamilyNames* by_class = nullptr;
  if (named) by_class = find_family(&FamilyNames::architecture, architectures->front());
  const FamilyNames* family =
      model_type ? find_family(&FamilyNames::model_type, *model_type) : by_class;
  if (family == nullptr && model_type) {
    top.complaints().add_unsupported(fmt::format("model_type: found {}, expected {}",
                                                 in_quotes(*model_type),
                                                 supported_list(&FamilyNames::model_type)));
    return;
  }
  if (named && (by_class == nullptr || by_class->family != family->family)) {
    top.complaints().add_unsupported(fmt::format("architectures: found {}, expected {}",
                                                 in_quotes(architectures->front()),
                                                 supported_list(&FamilyNames::architecture)));
    return;
  }
  config.family = family->family;
  config.model_type = family->model_type;
}

void read_trunk(const JsonFields& top, const JsonFields& text, ModelConfig& config) {
  config.vocab_rows = text.required_integer("vocab_size", 1, 1 << 24);
  config.hidden = text.required_integer("hidden_size", 1, 1 << 16);
  config.num_layers = text.required_integer("num_hidden_layers", 1, 1024);
  config.max_positions = text.required_integer("max_position_embeddings", 1, int64_t{1} << 28);
  config.rms_norm_eps = text.number("rms_norm_eps", 1e-12, 1e-2).value_or(1e-6);
  config.zero_centred_norms = config.family != Family::kQwen3Moe;
  // A wrapper writes the flag at the top level; its text part may carry a library default.
  config.tie_word_embeddings = top.boolean("tie_word_embeddings")
                                   .value_or(text.boolean("tie_word_embeddings").value_or(false));
}

void read_attention(const JsonFields& text, ModelConfig& config) {
  config.num_heads = text.required_integer("num_attention_heads", 1, 1024);
  config.num_kv_heads = text.integer("num_key_value_heads", 1, 1024).value_or(config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    text.complain("num_key_value_heads", std::to_string(config.num_kv_heads),
                  fmt::format("a divisor of num_attention_heads, {}", config.num_heads));
  }
  config.attention_output_gate = config.family != Family::kQwen3Moe;
  if (!text.has("head_dim") && config.hidden % config.num_heads == 0) {
    config.head_dim = config.hidden / config.num_heads;
  } else {
    config.head_dim = text.required_integer("head_dim", 2, 4096);
  }
}

std::optional<LayerKind> layer_kind(std::string_view name) {
  // The short names are those of checkpoints saved before the current convention.
  if (name == "linear_attention" || name == "mamba" || name == "conv") {
    return LayerKind::kGatedDelta;
  }
  if (name == "full_attention" || name == "attention") return LayerKind::kFullAttention;
  return std::nullopt;
}

void read_listed_layers(const JsonFields& text, const std::vector<std::string>& names,
                        ModelConfig& config) {
  if (static_cast<int64_t>(names.size()) != config.num_layers) {
    text.complain("layer_types", fmt::format("{} entries", names.size()),
                  fmt::format("{}, as num_hidden_layers says", config.num_layers));
    return;
  }
  for (size_t layer = 0; layer < names.size(); ++layer) {
    const auto kind = layer_kind(names[layer]);
    if (!kind) {
      text.complaints().add_unsupported(
          fmt::format("{}[{}]: found {}, expected 'linear_attention' or 'full_attention'",
                      text.full_name("layer_types"), layer, in_quotes(names[layer])));
      return;
    }
    config.layer_kinds.push_back(*kind);
  }
}

// layer_types if listed; else layer i attends fully iff (i+1) % full_attention_interval == 0.
void read_layer_kinds(const JsonFields& text, ModelConfig& config) {
  const auto interval = text.integer("full_attention_interval", 1, 1024).value_or(4);
  const auto names = text.strings("layer_types");
  if (names) {
    read_listed_layers(text, *names, config);
  } else {
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      const bool full = config.family == Family::kQwen3Moe || (layer + 1) % interval == 0;
      config.layer_kinds.push_back(full ? LayerKind::kFullAttention : LayerKind::kGatedDelta);
    }
  }
  if (config.family == Family::kQwen3Moe && config.count_layers(LayerKind::kGatedDelta) > 0) {
    text.complain("layer_types", "'linear_attention'", "only 'full_attention' in qwen3_moe");
  }
}

void read_gated_delta(const JsonFields& text, ModelConfig& config) {
  if (config.count_layers(LayerKind::kGatedDelta) == 0) return;
  config.gdn_key_heads = text.required_integer("linear_num_key_heads", 1, 1024);
  config.gdn_value_heads = text.required_integer("linear_num_value_heads", 1, 1024);
  config.gdn_key_dim = text.required_integer("linear_key_head_dim", 1, 4096);
  config.gdn_value_dim = text.required_integer("linear_value_head_dim", 1, 4096);
  config.gdn_conv_taps = text.required_integer("linear_conv_kernel_dim", 1, 16);
  if (config.gdn_value_heads % config.gdn_key_heads != 0) {
    text.complain("linear_num_value_heads", std::to_string(config.gdn_value_heads),
                  fmt::format("a multiple of linear_num_key_heads, {}", config.gdn_key_heads));
  }
}

void read_experts(const JsonFields& text, ModelConfig& config) {
  // transformers 5 writes qwen3_moe's count as num_local_experts.
  const bool renamed = !text.has("num_experts") && text.has("num_local_experts");
  config.num_experts =
      text.required_integer(renamed ? "num_local_experts" : "num_experts", 1, 65536);
  config.top_k = text.required_integer("num_experts_per_tok", 1, 1024);
  if (config.top_k > config.num_experts) {
    text.complain("num_experts_per_tok", std::to_string(config.top_k),
                  fmt::format("at most num_experts, {}", config.num_experts));
  }
  config.expert_dim = text.required_integer("moe_intermediate_size", 1, 1 << 16);
  if (config.family != Family::kQwen3Moe) {
    config.shared_expert_dim = text.required_integer("shared_expert_intermediate_size", 1, 1 << 16);
  }
  const auto normalise = text.boolean("norm_topk_prob");
  // qwen3_5_moe's model code always renormalises; the older families' defaults differ.
  config.normalise_top_k = config.family == Family::kQwen3_5Moe ||
                           normalise.value_or(config.family == Family::kQwen3Next);
}

void read_multi_token_prediction(const JsonFields& text, ModelConfig& config) {
  if (config.family == Family::kQwen3Moe) return;
  const bool next = config.family == Family::kQwen3Next;
  const auto layers =
      text.integer(next ? "num_nextn_predict_layers" : "mtp_num_hidden_layers", 0, 1);
  config.mtp_layers = layers.value_or(next ? 1 : 0);
}

// Features the model code knows but no published model of these families uses.
void refuse_unused_features(const JsonFields& text) {
  const auto refuse = [&](std::string_view name, std::string_view expected) {
    const auto element = text.find(name);
    text.complaints().add_unsupported(fmt::format("{}: found {}, expected {}", text.full_name(name),
                                                  describe(*element), expected));
  };
  for (std::string_view name :
       {"attention_bias", "qkv_bias", "use_sliding_window", "mtp_use_dedicated_embeddings"}) {
    if (text.boolean(name).value_or(false)) refuse(name, "false");
  }
  if (text.string("hidden_act").value_or("silu") != "silu") refuse("hidden_act", "'silu'");
  if (text.integer("decoder_sparse_step", 0, 1024).value_or(1) != 1) {
    refuse("decoder_sparse_step", "1: experts in every layer");
  }
  if (!text.integers("mlp_only_layers", 0, 1024).empty()) {
    refuse("mlp_only_layers", "an empty list: experts in every layer");
  }
}

void read_eos(const JsonFields& top, const JsonFields& text, ModelConfig& config) {
  const JsonFields& fields = text.has("eos_token_id") ? text : top;
  for (int64_t id : fields.integers("eos_token_id", 0, config.vocab_rows - 1)) {
    config.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
}

}  // namespace

int64_t ModelConfig::count_layers(LayerKind kind) const {
  return std::count(layer_kinds.begin(), layer_kinds.end(), kind);
}

std::string_view family_name(Family family) {
  switch (family) {
    case Family::kQwen3_5Moe:
      return "qwen3_5_moe";
    case Family::kQwen3Next:
      return "qwen3_next";
    case Family::kQwen3Moe:
      return "qwen3_moe";
  }
  return "?";
}

Result<ModelConfig> parse_model_config(std::string_view json, const std::string& path) {
  ASSIGN_OR_RETURN(const auto document, parse_json_object(json, path, kDepthMax));
  Complaints complaints;
  const JsonFields top(document->root, "", complaints);
  ModelConfig config;
  read_family(top, config);
  // Without a family the other fields have no meaning to check against.
  if (config.model_type.empty()) return complaints.status(path);

  const JsonFields text = top.object("text_config").value_or(top);
  read_trunk(top, text, config);
  read_attention(text, config);
  read_rope(text, config);
  read_layer_kinds(text, config);
  read_gated_delta(text, config);
  read_experts(text, config);
  read_multi_token_prediction(text, config);
  read_quantisation(top, text, config);
  read_eos(top, text, config);
  refuse_unused_features(text);
  RETURN_IF_ERROR(complaints.status(path));
  return config;
}

}  // namespace moray
