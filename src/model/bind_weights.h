// Binding of a checkpoint: names, shapes and layouts on file, whichever family they are of.
//
// Invariant: what bind_weights returns agrees with the config tensor by tensor. Accepted are the
// published FP8 and BF16 layouts and re-saves of them: prefix with or without the vision wrapper,
// routed experts fused or one by one (each layer for itself), with or without MTP. What a family
// lacks (delta layers, output gate, shared expert, MTP) its config lacks.
#pragma once

#include "src/model/weights.h"

namespace moray {

// Everything but inv_freq, rope_scale and the reading of the bytes (load.cpp). Errors: one
// kInvalidFile listing every tensor that is missing, unexpected or of another shape or dtype.
Result<Weights> bind_weights(std::shared_ptr<const Checkpoint> checkpoint);

}  // namespace moray
