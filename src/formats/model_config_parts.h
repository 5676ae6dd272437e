// The parts of config.json with a file of their own; called by parse_model_config only.
//
// Each reads its fields into `config` and complains through the fields it was given.
#pragma once

#include "src/formats/json_fields.h"
#include "src/formats/model_config.h"

namespace moray {

// rope_theta, rotary_dim, yarn: from rope_parameters or the older flat fields. Needs head_dim,
// max_positions and family.
void read_rope(const JsonFields& text, ModelConfig& config);

// block_fp8, not_converted, dtype: from quantization_config and dtype/torch_dtype of either level.
void read_quantisation(const JsonFields& top, const JsonFields& text, ModelConfig& config);

}  // namespace moray
