// Whether the kernels of a prompt and those of a decode step agree on the model at hand.
//
// The three ways to the same logits (decode steps, blocks with BF16 activations, blocks with FP8
// ones) share no product, norm, routing, delta-rule or attention kernel. What they agree on is not
// one kernel's error; a card on which one of them is wrong is found out at the first start. The
// oracles are the tests' (tests/gpu).
#pragma once

#include "src/model/gpu_forward.h"

namespace moray {

struct GpuCheck {
  // Medians over the last tokens of KL(steps || blocks) in nats; infinite where not finite.
  double block_kl = 0;
  double w8a8_kl = 0;  // of blocks with FP8 activations; 0 where the model has none
};

// Rounding costs 1e-3, FP8 activations 1e-2, on a random model a turned decision of a router a few
// tenths for a token; logits that have nothing to do with each other differ by whole nats.
inline constexpr double kGpuCheckKlMax = 0.5;

// Runs 64 tokens (fewer if the state holds fewer) three times from an empty state and leaves it
// empty. Tens of milliseconds. Errors: kIo.
Result<GpuCheck> check_paths(GpuForward& forward, int64_t vocab_rows);

}  // namespace moray
