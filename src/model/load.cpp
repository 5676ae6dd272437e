// load_weights: from a checkpoint to weights that a forward pass can run on.
//
// Invariant: a family that is not bound here is refused by name. Binding is bind_weights.h, the
// pass over the bytes read_weights.h.
#include <fmt/format.h>

#include "src/model/bind_weights.h"
#include "src/model/model.h"
#include "src/model/read_weights.h"
#include "src/model/rope.h"
#include "src/model/weights.h"

namespace moray {

Result<std::shared_ptr<const Weights>> load_weights(std::shared_ptr<const Checkpoint> checkpoint,
                                                    const LoadOptions& options) {
  const ModelConfig& config = checkpoint->config();
  if (config.family == Family::kQwen3Next) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: found a {} model, expected qwen3_5_moe or qwen3_moe, the "
                              "families this version runs",
                              checkpoint->folder(), family_name(config.family)));
  }
  ASSIGN_OR_RETURN(Weights weights, bind_weights(std::move(checkpoint)));
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

}  // namespace moray
