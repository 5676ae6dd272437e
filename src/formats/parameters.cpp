#include "src/formats/parameters.h"

namespace moray {
namespace {

int64_t attention_parameters(const ModelConfig& config) {
  const int64_t queries = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim;
  const int64_t gates = config.attention_output_gate ? queries : 0;
  const int64_t rows = queries + gates + 2 * keys;
  return config.hidden * (rows + queries) + 2 * config.head_dim;
}

int64_t delta_net_parameters(const ModelConfig& config) {
  const int64_t values = config.gdn_value_total();
  const int64_t rows = config.gdn_conv_channels() + values + 2 * config.gdn_value_heads;
  const int64_t conv = config.gdn_conv_channels() * config.gdn_conv_taps;
  const int64_t decay = 2 * config.gdn_value_heads;  // A_log and dt_bias
  return config.hidden * (rows + values) + conv + decay + config.gdn_value_dim;
}

int64_t expert_parameters(const ModelConfig& config, int64_t width) {
  return 3 * config.hidden * width;
}

int64_t shared_expert_parameters(const ModelConfig& config) {
  if (config.shared_expert_dim == 0) return 0;
  return expert_parameters(config, config.shared_expert_dim) + config.hidden;  // and its gate
}

// fc, its two input norms, the final norm, and one full-attention layer with experts.
int64_t mtp_parameters(const ModelConfig& config) {
  if (config.mtp_layers == 0) return 0;
  const int64_t layer = attention_parameters(config) + 2 * config.hidden +
                        config.num_experts * config.hidden +
                        config.num_experts * expert_parameters(config, config.expert_dim) +
                        shared_expert_parameters(config);
  return 2 * config.hidden * config.hidden + 3 * config.hidden + config.mtp_layers * layer;
}

}  // namespace

int64_t ParameterCounts::total() const {
  return embedding + attention + delta_net + router + routed_experts + shared_expert + norms + head;
}

int64_t ParameterCounts::active() const {
  return attention + delta_net + router + active_routed + shared_expert + norms + head_product;
}

ParameterCounts count_parameters(const ModelConfig& config) {
  const int64_t layers = config.num_layers;
  ParameterCounts counts;
  counts.embedding = config.vocab_rows * config.hidden;
  counts.attention = config.count_layers(LayerKind::kFullAttention) * attention_parameters(config);
  counts.delta_net = config.count_layers(LayerKind::kGatedDelta) * delta_net_parameters(config);
  counts.router = layers * config.num_experts * config.hidden;
  counts.active_routed = layers * config.top_k * expert_parameters(config, config.expert_dim);
  counts.routed_experts =
      layers * config.num_experts * expert_parameters(config, config.expert_dim);
  counts.shared_expert = layers * shared_expert_parameters(config);
  counts.norms = (2 * layers + 1) * config.hidden;
  counts.head_product = counts.embedding;
  counts.head = config.tie_word_embeddings ? 0 : counts.embedding;
  counts.mtp = mtp_parameters(config);
  return counts;
}

}  // namespace moray
