// model_info(): dimensions from the config, bytes and parameters from the headers.
#include <array>
#include <map>
#include <utility>

#include "moray/tools.h"
#include "src/formats/checkpoint.h"
#include "src/formats/model_card.h"
#include "src/formats/parameters.h"
#include "src/formats/text_file.h"

namespace moray {
namespace {

constexpr size_t kCardBytesMax = 16 << 20;

enum class Part {
  kEmbedding,
  kNorms,
  kDeltaNet,
  kAttention,
  kRouter,
  kRoutedExperts,
  kSharedExpert,
  kHead,
  kMtp,
  kVision,
  kOther,
};
constexpr std::array<const char*, 11> kPartNames = {
    "embedding",     "norms", "delta net", "attention", "router", "routed experts",
    "shared expert", "head",  "mtp",       "vision",    "other"};

// First match decides: the MTP layer and the vision tower contain names of the trunk's parts.
Part part_of(std::string_view name) {
  const auto has = [&](std::string_view text) { return name.find(text) != name.npos; };
  if (name.starts_with("mtp.")) return Part::kMtp;
  if (name.starts_with("model.visual.") || name.starts_with("visual.")) return Part::kVision;
  if (has("embed_tokens.")) return Part::kEmbedding;
  if (name.starts_with("lm_head.")) return Part::kHead;
  if (has(".linear_attn.")) return Part::kDeltaNet;
  if (has(".self_attn.")) return Part::kAttention;
  if (has(".mlp.gate.")) return Part::kRouter;
  if (has(".mlp.experts.")) return Part::kRoutedExperts;
  if (has(".mlp.shared_expert")) return Part::kSharedExpert;
  if (has("norm.weight")) return Part::kNorms;
  return Part::kOther;
}

bool is_scale(std::string_view name) {
  return name.ends_with("_scale_inv");
}

void fill_dimensions(const ModelConfig& config, ModelInfo& info) {
  info.model_type = config.model_type;
  info.layers = config.num_layers;
  info.delta_layers = config.count_layers(LayerKind::kGatedDelta);
  info.hidden = config.hidden;
  info.vocab_rows = config.vocab_rows;
  info.context = config.max_positions;
  info.heads = config.num_heads;
  info.kv_heads = config.num_kv_heads;
  info.head_dim = config.head_dim;
  info.rotary_dim = config.rotary_dim;
  info.delta_key_heads = config.gdn_key_heads;
  info.delta_value_heads = config.gdn_value_heads;
  info.delta_key_dim = config.gdn_key_dim;
  info.delta_value_dim = config.gdn_value_dim;
  info.experts = config.num_experts;
  info.top_k = config.top_k;
  info.expert_dim = config.expert_dim;
  info.shared_expert_dim = config.shared_expert_dim;
  info.block_fp8 = config.block_fp8;
  info.tied_embeddings = config.tie_word_embeddings;
  const ParameterCounts counts = count_parameters(config);
  info.parameters_total = counts.total();
  info.parameters_active = counts.active();
  info.parameters_mtp = counts.mtp;
}

void fill_storage(const Checkpoint& checkpoint, ModelInfo& info) {
  std::map<std::pair<Part, std::string_view>, ModelPart> parts;
  for (std::string_view name : checkpoint.names()) {
    const Checkpoint::Tensor tensor = *checkpoint.find(name);
    const Part part = part_of(name);
    ModelPart& row = parts[{part, dtype_name(tensor.dtype)}];
    const int64_t bytes = static_cast<int64_t>(tensor.bytes.size());
    const int64_t parameters = is_scale(name) ? 0 : bytes / dtype_bytes(tensor.dtype);
    row.tensors += 1;
    row.bytes += bytes;
    row.parameters += parameters;
    info.tensors += 1;
    info.bytes += bytes;
    if (part == Part::kMtp) {
      info.parameters_stored_mtp += parameters;
    } else if (part != Part::kVision) {
      info.parameters_stored += parameters;
    }
  }
  for (auto& [key, row] : parts) {
    row.part = kPartNames[static_cast<size_t>(key.first)];
    row.dtype = key.second;
    info.parts.push_back(std::move(row));
  }
  info.shards = static_cast<int64_t>(checkpoint.shard_paths().size());
}

}  // namespace

Result<ModelInfo> model_info(const std::string& folder) {
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::open(folder));
  ModelInfo info;
  info.folder = folder;
  fill_dimensions(checkpoint->config(), info);
  fill_storage(*checkpoint, info);
  // A model without a readable card is still a model.
  const auto card = read_text_file(folder + "/README.md", kCardBytesMax);
  if (card.ok()) info.licence = card_licence(*card);
  return info;
}

}  // namespace moray
