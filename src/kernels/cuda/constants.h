// The dimensions of a model and a GPU that kernels are compiled for.
//
// Invariant: constants_text() is the whole of "constants.cuh", a pure function of its argument, so
// that equal dimensions share cached kernels. A part that a family lacks has dimension 0.
#pragma once

#include <string>

namespace moray::cuda {

struct Constants {
  int arch = 0;  // 89, 90 or 120
  int multiprocessors = 0;

  int hidden = 0, vocab_rows = 0, layers = 0;
  float norm_eps = 0;
  bool zero_centred_norms = false;

  int heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
  bool has_gate = false;  // of the attention output
  float rope_scale = 1;   // of cos and sin (YaRN); 1 without scaling
  bool kv_fp8 = false;

  int key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, conv_taps = 0;  // delta net

  int experts = 0, top_k = 0, expert_dim = 0;
  int shared_dim = 0;  // 0: no shared expert
  bool normalise_top_k = false;

  // Which weights are block FP8; false: BF16.
  bool projection_fp8 = false, expert_fp8 = false, shared_fp8 = false, head_fp8 = false;
};

// `constexpr int kHidden = 2048;` and so on: the members in camel case with a k; kArch is 890, 900
// or 1200.
std::string constants_text(const Constants& constants);

}  // namespace moray::cuda
