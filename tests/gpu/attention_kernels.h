// The shapes that attention is tested with on the GPU, and their kernels.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/gpu/program.h"
#include "src/kernels/cuda/attention.h"
#include "src/kernels/cuda/constants.h"
#include "src/kernels/cuda/sources.h"
#include "src/kernels/ops.h"
#include "tests/gpu/device.h"

namespace moray::attention {

struct Dimensions {
  int heads, kv_heads, head_dim, rotary_dim;
  bool has_gate;
  NormKind kind;
};

inline const Dimensions k35b{16, 2, 256, 64, true, NormKind::kZeroCentred};
inline const std::vector<Dimensions> kShapes = {
    k35b,
    {32, 4, 128, 128, false, NormKind::kPlain},     // the 30B coder
    {4, 2, 256, 64, true, NormKind::kZeroCentred},  // moray-nano: two heads a KV head
    {3, 3, 32, 8, true, NormKind::kZeroCentred},    // one
    {12, 1, 64, 64, false, NormKind::kZeroCentred},
};
inline constexpr float kRopeScale = 1.1f, kEps = 1e-6f;

// An FP8 cache is tried on the widest heads and the narrowest.
inline bool has_fp8_tests(const Dimensions& d) {
  return d.heads == 16 || d.head_dim == 32;
}

inline std::string trace(const Dimensions& d) {
  return "heads " + std::to_string(d.heads) + '/' + std::to_string(d.kv_heads) + 'x' +
         std::to_string(d.head_dim);
}

inline cuda::AttentionShape shape_of(const Dimensions& d, bool kv_fp8) {
  const gpu::DeviceInfo& info = gpu::test_device()->info();
  return {.heads = d.heads,
          .kv_heads = d.kv_heads,
          .head_dim = d.head_dim,
          .has_gate = d.has_gate,
          .multiprocessors = info.multiprocessors,
          .arch = info.arch(),
          .kv_fp8 = kv_fp8};
}

struct BuiltKernels {
  std::shared_ptr<const gpu::KernelSet> set;
  cuda::AttentionKernels kernels;
};

inline BuiltKernels build_kernels(const Dimensions& d, bool kv_fp8) {
  const cuda::AttentionShape shape = shape_of(d, kv_fp8);
  cuda::Constants constants;
  constants.arch = shape.arch;
  constants.multiprocessors = shape.multiprocessors;
  constants.norm_eps = kEps;
  constants.zero_centred_norms = d.kind == NormKind::kZeroCentred;
  constants.heads = d.heads;
  constants.kv_heads = d.kv_heads;
  constants.head_dim = d.head_dim;
  constants.rotary_dim = d.rotary_dim;
  constants.has_gate = d.has_gate;
  constants.rope_scale = kRopeScale;
  constants.kv_fp8 = kv_fp8;
  auto set = gpu::KernelSet::build(gpu::test_device(),
                                   {.sources = cuda::sources(),
                                    .programs = cuda::attention_programs(shape),
                                    .constants = cuda::constants_text(constants)},
                                   {});
  EXPECT_TRUE(set.ok()) << set.status().message();
  if (!set.ok()) return {};
  return {*set, cuda::AttentionKernels::find(**set, shape)};
}

// The kernels of a shape; all shapes are built together on first use, which takes as long as one
// where there are cores enough. Null when that failed, after saying why.
inline const cuda::AttentionKernels* kernels_of(const Dimensions& d, bool kv_fp8 = false) {
  static const std::map<std::string, BuiltKernels> all = [] {
    std::map<std::string, std::future<BuiltKernels>> pending;
    for (const Dimensions& shape : kShapes) {
      for (bool fp8 : {false, true}) {
        if (fp8 && !has_fp8_tests(shape)) continue;
        pending[trace(shape) + (fp8 ? " FP8" : "")] =
            std::async(std::launch::async, build_kernels, shape, fp8);
      }
    }
    std::map<std::string, BuiltKernels> built;
    for (auto& [name, future] : pending) built[name] = future.get();
    return built;
  }();
  const BuiltKernels& found = all.at(trace(d) + (kv_fp8 ? " FP8" : ""));
  return found.set != nullptr ? &found.kernels : nullptr;
}

}  // namespace moray::attention
