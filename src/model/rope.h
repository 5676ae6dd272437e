// Rotary frequencies of a model, plain or stretched by YaRN.
//
// Invariant: rotation i of a token at position p is by the angle p * inv_freq[i], computed in FP32;
// nothing else about the position enters a model. How pairs are rotated is the attention op's.
#pragma once

#include <vector>

#include "src/formats/model_config.h"

namespace moray {

struct Rope {
  std::vector<float> inv_freq;  // [rotary_dim / 2]
  float scale = 1;              // on cos and sin
};

// inv_freq[i] = theta^(-2i / rotary_dim), the power rounded to FP32 before its reciprocal is taken,
// as torch does. YaRN (Peng et al., 2023): f = inv_freq; dims that turn more than beta_fast times
// over the original context keep f, those below beta_slow turns get f / factor, with a linear ramp
// in the dim index between; scale = 0.1 ln(factor) + 1 unless the file gives attention_factor.
Rope make_rope(const ModelConfig& config);

}  // namespace moray
