// The models and architectures that kernels are compiled for in tests.
#pragma once

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "src/formats/model_config.h"
#include "src/gpu/program.h"
#include "src/kernels/cuda/constants.h"
#include "src/kernels/cuda/sources.h"

namespace moray {

struct CompileCase {
  std::string folder;  // of a config.json, below the source tree
  int arch = 0;

  friend void PrintTo(const CompileCase& made, std::ostream* out) { *out << made.name(); }
  std::string name() const {
    std::string text = folder.substr(folder.rfind('/') + 1) + "_sm" + std::to_string(arch);
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
    return text;
  }
};

// The tiny fixtures, whose odd sizes are about code paths rather than limits, on one of them only.
inline std::vector<CompileCase> compile_cases() {
  std::vector<CompileCase> cases;
  for (const char* folder :
       {"models/moray-nano", "tests/configs/qwen3.6-35b-a3b", "tests/configs/qwen3-coder-next-80b",
        "tests/configs/qwen3-coder-30b-a3b"}) {
    for (const int arch : {89, 90, 120}) cases.push_back({folder, arch});
  }
  for (const char* folder :
       {"tests/data/tiny-fp8", "tests/data/tiny-fused", "tests/data/tiny-experts"})
    cases.push_back({folder, 90});
  return cases;
}

struct CompilePlan {
  cuda::Constants constants;
  gpu::BuildRequest request;
};

inline cuda::Constants constants_of(const ModelConfig& c, int arch) {
  cuda::Constants k;
  k.arch = arch;
  k.multiprocessors = arch == 90 ? 132 : arch == 89 ? 128 : 170;
  k.hidden = int(c.hidden);
  k.vocab_rows = int(c.vocab_rows);
  k.layers = int(c.num_layers);
  k.norm_eps = float(c.rms_norm_eps);
  k.zero_centred_norms = c.zero_centred_norms;
  k.heads = int(c.num_heads);
  k.kv_heads = int(c.num_kv_heads);
  k.head_dim = int(c.head_dim);
  k.rotary_dim = int(c.rotary_dim);
  k.has_gate = c.attention_output_gate;
  k.key_heads = int(c.gdn_key_heads);
  k.value_heads = int(c.gdn_value_heads);
  k.key_dim = int(c.gdn_key_dim);
  k.value_dim = int(c.gdn_value_dim);
  k.conv_taps = int(c.gdn_conv_taps);
  k.experts = int(c.num_experts);
  k.top_k = int(c.top_k);
  k.expert_dim = int(c.expert_dim);
  k.shared_dim = int(c.shared_expert_dim);
  k.normalise_top_k = c.normalise_top_k;
  k.projection_fp8 = k.expert_fp8 = c.block_fp8;
  k.shared_fp8 = c.block_fp8 && c.shared_expert_dim > 0;
  return k;
}

inline Result<CompilePlan> make_plan(const CompileCase& wanted) {
  const std::string path = std::string(MORAY_SOURCE_DIR) + "/" + wanted.folder + "/config.json";
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  ASSIGN_OR_RETURN(const ModelConfig config, parse_model_config(text, path));
  CompilePlan plan;
  plan.constants = constants_of(config, wanted.arch);
  plan.request = {.sources = cuda::sources(),
                  .programs = cuda::programs(),
                  .constants = cuda::constants_text(plan.constants)};
  return plan;
}

}  // namespace moray
