// Weights of a config without a checkpoint: every view has its shape, dtype and place in one block
// of memory, and no values yet.
//
// Invariant: shapes are those a checkpoint of that config binds to; in a block-FP8 config the
// projections and experts are FP8 with scales, as in the official repositories, everything else is
// of the config's dtype, vectors are FP32; the head is FP8 if asked for. No MTP head
// (config.mtp_layers becomes 0).
#pragma once

#include "src/model/weights.h"

namespace moray {

int64_t blank_weights_bytes(const ModelConfig& config, HeadFormat head);

// `memory`: blank_weights_bytes() bytes that outlive the result, 64-byte aligned. Null: the views
// must not be read, only asked for their shapes (what a memory planner needs).
Weights blank_weights(const ModelConfig& config, HeadFormat head, std::byte* memory);

}  // namespace moray
