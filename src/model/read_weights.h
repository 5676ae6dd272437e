// The one pass over a checkpoint's bytes: every matrix of a model is read once while loading.
//
// Invariant: afterwards no forward pass meets a byte that was never read, so that a lost page or a
// slow disk shows while loading and not in the middle of an answer. Which matrices there are is
// binding's concern (bind_weights.h).
#pragma once

#include "src/model/model.h"
#include "src/model/weights.h"

namespace moray {

// Reads all matrices, reporting progress; kCancelled when progress() returns false. Up to
// options.copy_bytes_max in all they are copied to huge pages, each matrix on its own cache lines
// (views then point into weights.arena) and their normal tiles found; larger models stay mapped and
// take the slower conversion, which memory hides.
Status read_weights(Weights& weights, const LoadOptions& options);

}  // namespace moray
