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
#include "src/gpu/device.h"
#include "src/gpu/program.h"
#include "src/kernels/cuda/constants.h"
#include "src/kernels/cuda/sources.h"
#include "src/model/gpu_kernels.h"

namespace moray {

struct CompileCase {
  std::string folder;  // of a config.json, below the source tree
  int arch = 0;
  bool is_fast = false;  // FP8 head and cache: only the programs that these change

  bool is_fixture() const { return folder.starts_with("tests/data/"); }
  friend void PrintTo(const CompileCase& made, std::ostream* out) { *out << made.name(); }
  std::string name() const {
    std::string text = folder.substr(folder.rfind('/') + 1) + "_sm" + std::to_string(arch) +
                       (is_fast ? "_fast" : "");
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
    for (const int arch : {89, 90, 120}) {
      cases.push_back({folder, arch});
      cases.push_back({folder, arch, true});
    }
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

// Multiprocessors of an RTX 4090, an H200 and an RTX 5090.
inline gpu::DeviceInfo typical_device(int arch) {
  gpu::DeviceInfo info;
  info.major = arch / 10;
  info.minor = arch % 10;
  info.multiprocessors = arch == 90 ? 132 : arch == 89 ? 128 : 170;
  return info;
}

inline Result<CompilePlan> make_plan(const CompileCase& wanted) {
  const std::string path = std::string(MORAY_SOURCE_DIR) + "/" + wanted.folder + "/config.json";
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  ASSIGN_OR_RETURN(const ModelConfig config, parse_model_config(text, path));
  CompilePlan plan;
  const GpuFormats formats = {.projections_fp8 = config.block_fp8,
                              .experts_fp8 = config.block_fp8,
                              .shared_fp8 = config.block_fp8 && config.shared_expert_dim > 0,
                              .head_fp8 = wanted.is_fast,
                              .kv_fp8 = wanted.is_fast};
  RETURN_IF_ERROR(check_gpu_limits(config));
  plan.constants = gpu_constants(config, formats, typical_device(wanted.arch));
  plan.request = {.sources = cuda::sources(),
                  .programs = gpu_programs(config, formats, plan.constants),
                  .constants = cuda::constants_text(plan.constants)};
  if (wanted.is_fast) {
    std::erase_if(plan.request.programs, [](const std::string& program) {
      return program != "decode_head.cu" && !program.starts_with("attention");
    });
  }
  return plan;
}

}  // namespace moray
