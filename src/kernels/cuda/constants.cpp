#include "src/kernels/cuda/constants.h"

#include <fmt/format.h>

#include <string_view>

namespace moray::cuda {
namespace {

class Writer {
 public:
  void add(std::string_view name, int value) {
    text_ += fmt::format("constexpr int {} = {};\n", name, value);
  }
  void add(std::string_view name, bool value) {
    text_ += fmt::format("constexpr bool {} = {};\n", name, value);
  }
  // Nine digits tell any two floats apart.
  void add(std::string_view name, float value) {
    text_ += fmt::format("constexpr float {} = {:#.9g}f;\n", name, value);
  }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_ = "// The dimensions of this compilation.\n#pragma once\n\n";
};

}  // namespace

std::string constants_text(const Constants& constants) {
  Writer writer;
  writer.add("kArch", constants.arch * 10);
  writer.add("kMultiprocessors", constants.multiprocessors);
  writer.add("kHidden", constants.hidden);
  writer.add("kVocabRows", constants.vocab_rows);
  writer.add("kLayers", constants.layers);
  writer.add("kNormEps", constants.norm_eps);
  writer.add("kZeroCentredNorms", constants.zero_centred_norms);
  writer.add("kHeads", constants.heads);
  writer.add("kKvHeads", constants.kv_heads);
  writer.add("kHeadDim", constants.head_dim);
  writer.add("kRotaryDim", constants.rotary_dim);
  writer.add("kHasGate", constants.has_gate);
  writer.add("kRopeScale", constants.rope_scale);
  writer.add("kKvFp8", constants.kv_fp8);
  writer.add("kKeyHeads", constants.key_heads);
  writer.add("kValueHeads", constants.value_heads);
  writer.add("kKeyDim", constants.key_dim);
  writer.add("kValueDim", constants.value_dim);
  writer.add("kConvTaps", constants.conv_taps);
  writer.add("kExperts", constants.experts);
  writer.add("kTopK", constants.top_k);
  writer.add("kExpertDim", constants.expert_dim);
  writer.add("kSharedDim", constants.shared_dim);
  writer.add("kNormaliseTopK", constants.normalise_top_k);
  writer.add("kProjectionFp8", constants.projection_fp8);
  writer.add("kExpertFp8", constants.expert_fp8);
  writer.add("kSharedFp8", constants.shared_fp8);
  writer.add("kHeadFp8", constants.head_fp8);
  return std::move(writer).text();
}

}  // namespace moray::cuda
