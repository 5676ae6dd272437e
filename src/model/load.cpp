// load_weights: which family binds a checkpoint; and how many bytes a decode step must read.
//
// Invariant: this is the only place that asks for the family. Binding is qwen3_5_moe_weights.h, the
// pass over the bytes read_weights.h.
#include <fmt/format.h>

#include "src/model/model.h"
#include "src/model/qwen3_5_moe_weights.h"
#include "src/model/read_weights.h"
#include "src/model/rope.h"
#include "src/model/weights.h"

namespace moray {
namespace {

int64_t span_bytes(std::span<const float> values) {
  return static_cast<int64_t>(values.size_bytes());
}

int64_t expert_bytes(const ExpertView& expert) {
  return expert.gate.empty() ? 0 : expert.gate.bytes() + expert.up.bytes() + expert.down.bytes();
}

int64_t layer_bytes(const LayerWeights& w, int64_t top_k) {
  const AttentionWeights& a = w.attention;
  const DeltaWeights& d = w.delta;
  int64_t bytes = span_bytes(w.input_norm) + span_bytes(w.post_norm);
  if (w.kind == LayerKind::kFullAttention) {
    bytes += a.q.bytes() + a.k.bytes() + a.v.bytes() + a.o.bytes() + span_bytes(a.q_norm) +
             span_bytes(a.k_norm);
  } else {
    bytes += d.qkv.bytes() + d.z.bytes() + d.b.bytes() + d.a.bytes() + d.out.bytes() +
             span_bytes(d.conv) + span_bytes(d.a_log) + span_bytes(d.dt_bias) + span_bytes(d.norm);
  }
  return bytes + w.moe.gate.bytes() + w.moe.shared_gate.bytes() + expert_bytes(w.moe.shared) +
         top_k * expert_bytes(w.moe.experts.front());
}

}  // namespace

Result<std::shared_ptr<const Weights>> load_weights(std::shared_ptr<const Checkpoint> checkpoint,
                                                    const LoadOptions& options) {
  const ModelConfig& config = checkpoint->config();
  if (config.family != Family::kQwen3_5Moe) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: found a {} model, expected qwen3_5_moe, the one family this "
                              "version runs",
                              checkpoint->folder(), family_name(config.family)));
  }
  ASSIGN_OR_RETURN(Weights weights, bind_qwen3_5_moe(std::move(checkpoint)));
  Rope rope = make_rope(weights.config);
  weights.inv_freq = std::move(rope.inv_freq);
  weights.rope_scale = rope.scale;
  if (options.is_read) RETURN_IF_ERROR(read_weights(weights, options));
  return std::shared_ptr<const Weights>(std::make_shared<Weights>(std::move(weights)));
}

const ModelConfig& config_of(const Weights& weights) {
  return weights.config;
}

bool has_mtp(const Weights& weights) {
  return weights.mtp.has_value();
}

std::span<const std::string> notes_of(const Weights& weights) {
  return weights.notes;
}

int64_t decode_weight_bytes(const Weights& weights) {
  const MatrixView& table = weights.embedding;
  int64_t bytes =
      table.cols * dtype_bytes(table.dtype) + weights.head.bytes() + span_bytes(weights.final_norm);
  for (const LayerWeights& layer : weights.layers) {
    bytes += layer_bytes(layer, weights.config.top_k);
  }
  return bytes;
}

int64_t decode_state_bytes(const Weights& weights, int64_t depth, Precision precision) {
  const ModelConfig& c = weights.config;
  const int64_t element = precision == Precision::kBfloat16 ? 2 : 4;
  const int64_t attention = (depth + 1) * 2 * c.num_kv_heads * c.head_dim * element;
  // A delta layer reads S and, of the open chunk, on average half of the keys and writes; once a
  // chunk S is read and written with all of them.
  const int64_t s = c.gdn_value_heads * c.gdn_key_dim * c.gdn_value_dim;
  const int64_t chunk = kDeltaChunk * (c.gdn_key_total() + c.gdn_value_total());
  const int64_t tail = c.gdn_conv_taps * c.gdn_conv_channels();
  const int64_t delta = 4 * (s + chunk / 2 + tail + (2 * s + chunk) / kDeltaChunk);
  return c.count_layers(LayerKind::kFullAttention) * attention +
         c.count_layers(LayerKind::kGatedDelta) * delta;
}

}  // namespace moray
