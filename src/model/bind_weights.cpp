// Names and shapes of the tensors; see bind_weights.h.
//
// Each bind_* asks the binder for what one part of the config promises. The binder hands out empty
// views for what is wrong and remembers it, so that this file has no error paths of its own.
#include "src/model/bind_weights.h"

#include <fmt/format.h>

namespace moray {
namespace {

constexpr std::string_view kMtpPrefix = "mtp.";

AttentionWeights bind_attention(TensorBinder& binder, const ModelConfig& c,
                                const std::string& prefix) {
  const int64_t q_dim = c.num_heads * c.head_dim;
  const int64_t kv_dim = c.num_kv_heads * c.head_dim;
  AttentionWeights w;
  w.q = binder.matrix(prefix + "q_proj.weight", c.attention_output_gate ? 2 * q_dim : q_dim,
                      c.hidden);
  w.k = binder.matrix(prefix + "k_proj.weight", kv_dim, c.hidden);
  w.v = binder.matrix(prefix + "v_proj.weight", kv_dim, c.hidden);
  w.o = binder.matrix(prefix + "o_proj.weight", c.hidden, q_dim);
  w.q_norm = binder.widened(prefix + "q_norm.weight", {c.head_dim});
  w.k_norm = binder.widened(prefix + "k_norm.weight", {c.head_dim});
  return w;
}

DeltaWeights bind_delta(TensorBinder& binder, const ModelConfig& c, const std::string& prefix) {
  const int64_t channels = c.gdn_conv_channels();
  DeltaWeights w;
  w.qkv = binder.matrix(prefix + "in_proj_qkv.weight", channels, c.hidden);
  w.z = binder.matrix(prefix + "in_proj_z.weight", c.gdn_value_total(), c.hidden);
  w.b = binder.matrix_unquantised(prefix + "in_proj_b.weight", c.gdn_value_heads, c.hidden);
  w.a = binder.matrix_unquantised(prefix + "in_proj_a.weight", c.gdn_value_heads, c.hidden);
  w.out = binder.matrix(prefix + "out_proj.weight", c.hidden, c.gdn_value_total());
  w.conv = binder.widened(prefix + "conv1d.weight", {channels, 1, c.gdn_conv_taps});
  w.a_log = binder.widened(prefix + "A_log", {c.gdn_value_heads});
  w.dt_bias = binder.widened(prefix + "dt_bias", {c.gdn_value_heads});
  w.norm = binder.widened(prefix + "norm.weight", {c.gdn_value_dim});
  return w;
}

ExpertView bind_expert(TensorBinder& binder, const std::string& prefix, int64_t expert_dim,
                       int64_t hidden) {
  return {.gate = binder.matrix(prefix + "gate_proj.weight", expert_dim, hidden),
          .up = binder.matrix(prefix + "up_proj.weight", expert_dim, hidden),
          .down = binder.matrix(prefix + "down_proj.weight", hidden, expert_dim)};
}

// Fused files stack all experts: gate_up_proj [E, 2I, H] with the gate's rows first, down_proj
// [E, H, I], both without ".weight".
ExpertView slice_expert(TensorBinder& binder, const std::string& prefix, int64_t index,
                        const ModelConfig& c) {
  const int64_t dim = c.expert_dim;
  const std::string gate_up = prefix + "gate_up_proj";
  return {.gate = binder.fused_slice(gate_up, index, c.num_experts, 0, dim, 2 * dim, c.hidden),
          .up = binder.fused_slice(gate_up, index, c.num_experts, dim, dim, 2 * dim, c.hidden),
          .down = binder.fused_slice(prefix + "down_proj", index, c.num_experts, 0, c.hidden,
                                     c.hidden, dim)};
}

MoeWeights bind_moe(TensorBinder& binder, const ModelConfig& c, const std::string& prefix) {
  MoeWeights w;
  w.gate = binder.matrix_unquantised(prefix + "gate.weight", c.num_experts, c.hidden);
  const std::string experts = prefix + "experts.";
  const bool fused = binder.has(experts + "gate_up_proj") || binder.has(experts + "down_proj");
  w.experts.reserve(static_cast<size_t>(c.num_experts));
  for (int64_t e = 0; e < c.num_experts; ++e) {
    w.experts.push_back(
        fused ? slice_expert(binder, experts, e, c)
              : bind_expert(binder, fmt::format("{}{}.", experts, e), c.expert_dim, c.hidden));
  }
  if (c.shared_expert_dim > 0) {
    w.shared_gate = binder.matrix_unquantised(prefix + "shared_expert_gate.weight", 1, c.hidden);
    w.shared = bind_expert(binder, prefix + "shared_expert.", c.shared_expert_dim, c.hidden);
  }
  return w;
}

LayerWeights bind_layer(TensorBinder& binder, const ModelConfig& c, LayerKind kind,
                        const std::string& prefix) {
  LayerWeights w;
  w.kind = kind;
  w.input_norm = binder.widened(prefix + "input_layernorm.weight", {c.hidden});
  w.post_norm = binder.widened(prefix + "post_attention_layernorm.weight", {c.hidden});
  if (kind == LayerKind::kFullAttention) {
    w.attention = bind_attention(binder, c, prefix + "self_attn.");
  } else {
    w.delta = bind_delta(binder, c, prefix + "linear_attn.");
  }
  w.moe = bind_moe(binder, c, prefix + "mlp.");
  return w;
}

MtpWeights bind_mtp(TensorBinder& binder, const ModelConfig& c) {
  const std::string prefix(kMtpPrefix);
  MtpWeights w;
  w.fc = binder.matrix(prefix + "fc.weight", c.hidden, 2 * c.hidden);
  w.embedding_norm = binder.widened(prefix + "pre_fc_norm_embedding.weight", {c.hidden});
  w.hidden_norm = binder.widened(prefix + "pre_fc_norm_hidden.weight", {c.hidden});
  w.norm = binder.widened(prefix + "norm.weight", {c.hidden});
  w.layer = bind_layer(binder, c, LayerKind::kFullAttention, prefix + "layers.0.");
  return w;
}

// Text tensors nobody asked for mean that the config promises less than the file holds (fewer
// layers, another layer_types): running such a model would look fine and be wrong.
void complain_of_unused(TensorBinder& binder, const Checkpoint& checkpoint, bool mtp_ignored) {
  for (std::string_view name : binder.unused()) {
    const bool text = name.starts_with(checkpoint.text_prefix()) || name == "lm_head.weight" ||
                      (name.starts_with(kMtpPrefix) && !mtp_ignored);
    const bool vision = name.starts_with("model.visual.");
    const bool derived = name.ends_with("rotary_emb.inv_freq");
    const bool tied_head = name == "lm_head.weight" && checkpoint.config().tie_word_embeddings;
    if (text && !vision && !derived && !tied_head) {
      binder.complain(
          fmt::format("{}: found in the file, expected nothing of that name by "
                      "config.json",
                      name));
    }
  }
}

bool any_starts_with(const Checkpoint& checkpoint, std::string_view prefix) {
  for (std::string_view name : checkpoint.names()) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

}  // namespace

Result<Weights> bind_weights(std::shared_ptr<const Checkpoint> checkpoint) {
  TensorBinder binder(*checkpoint);
  const ModelConfig& c = checkpoint->config();
  const std::string& prefix = checkpoint->text_prefix();
  Weights w;
  w.config = c;
  w.embedding = binder.matrix_unquantised(prefix + "embed_tokens.weight", c.vocab_rows, c.hidden);
  w.head = c.tie_word_embeddings
               ? w.embedding
               : binder.matrix_unquantised("lm_head.weight", c.vocab_rows, c.hidden);
  w.final_norm = binder.widened(prefix + "norm.weight", {c.hidden});
  for (int64_t i = 0; i < c.num_layers; ++i) {
    w.layers.push_back(bind_layer(binder, c, c.layer_kinds[static_cast<size_t>(i)],
                                  fmt::format("{}layers.{}.", prefix, i)));
  }
  const bool mtp_on_file = any_starts_with(*checkpoint, kMtpPrefix);
  if (c.mtp_layers > 0 && mtp_on_file) {
    w.mtp = bind_mtp(binder, c);
  } else if (c.mtp_layers > 0) {
    w.notes.push_back(
        "mtp.*: config.json promises a multi-token-prediction head, but no shard "
        "holds it (re-saved models often lose it); speculation is off");
  } else if (mtp_on_file) {
    w.notes.push_back("mtp.*: ignored, because config.json does not mention it");
  }
  if (!w.mtp) w.config.mtp_layers = 0;  // so that no state keeps a cache for it
  complain_of_unused(binder, *checkpoint, c.mtp_layers == 0);
  RETURN_IF_ERROR(binder.finish());
  w.storage = std::make_shared<std::vector<std::unique_ptr<float[]>>>(binder.take_storage());
  w.checkpoint = std::move(checkpoint);
  return w;
}

}  // namespace moray
