// A GPU's memory, planned from a config without a GPU.
#include "src/generate/gpu_plan.h"

#include <gtest/gtest.h>

#include "src/formats/checkpoint.h"
#include "src/model/blank_weights.h"
#include "src/model/gpu_state.h"

namespace moray {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

struct Planned {
  Weights shapes;
  GpuKernels kernels;  // shapes only: nothing is launched
};

Planned plan_of(const std::string& name) {
  const auto config = read_model_config(MORAY_SOURCE_DIR "/tests/configs/" + name);
  CHECK(config.ok(), config.status().message());
  Planned planned{blank_weights(*config, HeadFormat::kPublished, nullptr), {}};
  const auto formats = gpu_formats(planned.shapes);
  CHECK(formats.ok(), formats.status().message());
  gpu::DeviceInfo device;
  device.major = 9;
  device.multiprocessors = 132;
  planned.kernels = gpu_kernel_shapes(*config, *formats, device);
  return planned;
}

// 36 GB of weights, 2 KiB of KV a token in each of 10 layers and 5.9 MB of state in each of 30.
TEST(GpuPlan, AThirtyFiveBillionParameterModelHasItsWholeContextOnALargeCard) {
  const Planned model = plan_of("qwen3.6-35b-a3b");
  const auto plan = plan_gpu(model.shapes, model.kernels, {}, 139 * kGib);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->context, 262144);
  EXPECT_EQ(plan->block_tokens, 8192);
  EXPECT_NEAR(static_cast<double>(plan->weight_bytes), 35.7e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(plan->state_bytes), 262144 * 20480.0 + 30 * 5.9e6, 30e6);
  EXPECT_LE(plan->workspace_bytes, 3 * kGib);
  EXPECT_TRUE(plan->notes.empty());
}

TEST(GpuPlan, ContextAndBlockShrinkWithTheRoomAndSaySo) {
  const Planned model = plan_of("qwen3.6-35b-a3b");
  const auto plan = plan_gpu(model.shapes, model.kernels, {}, 36 * kGib);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_LT(plan->context, 262144);
  EXPECT_LT(plan->block_tokens, 8192);
  EXPECT_EQ(plan->block_tokens % 64, 0);
  EXPECT_EQ(plan->notes.size(), 1u);
  EXPECT_LE(plan->total_bytes() + kGpuReserveBytes, 36 * kGib);
}

TEST(GpuPlan, WhatCannotFitIsRefusedInNumbers) {
  const Planned model = plan_of("qwen3.6-35b-a3b");
  const auto small = plan_gpu(model.shapes, model.kernels, {}, 16 * kGib);
  EXPECT_EQ(small.status().code(), StatusCode::kExhausted);
  EXPECT_NE(small.status().message().find("found 16384 MiB of free device memory"),
            std::string::npos)
      << small.status().message();
  EXPECT_EQ(check_gpu_room(model.shapes.config, HeadFormat::kPublished, 16 * kGib).code(),
            StatusCode::kExhausted);
  EXPECT_TRUE(check_gpu_room(model.shapes.config, HeadFormat::kPublished, 40 * kGib).ok());
  EngineOptions options;
  options.context = 262144;
  const auto tight = plan_gpu(model.shapes, model.kernels, options, 36 * kGib);
  EXPECT_EQ(tight.status().code(), StatusCode::kExhausted);
  EXPECT_NE(tight.status().message().find("would fit"), std::string::npos);
}

TEST(GpuPlan, PublicModelsAreWithinTheKernelsLimits) {
  for (const char* name : {"qwen3.6-35b-a3b", "qwen3-coder-next-80b", "qwen3-coder-30b-a3b"}) {
    const auto config = read_model_config(std::string(MORAY_SOURCE_DIR "/tests/configs/") + name);
    ASSERT_TRUE(config.ok()) << config.status().message();
    const Status status = check_gpu_limits(*config);
    EXPECT_TRUE(status.ok()) << name << ": " << status.message();
  }
  ModelConfig wide = *read_model_config(MORAY_SOURCE_DIR "/tests/configs/qwen3.6-35b-a3b");
  wide.hidden = 8192;
  EXPECT_EQ(check_gpu_limits(wide).message(),
            "cuda: found a hidden size of 8192, expected at most 4096, a multiple of 8");
}

TEST(GpuPlan, FamiliesNotProvenOnAGpuAreRefusedByName) {
  const std::string configs = MORAY_SOURCE_DIR "/tests/configs/";
  EXPECT_TRUE(check_gpu_family(*read_model_config(configs + "qwen3.6-35b-a3b")).ok());
  const Status coder = check_gpu_family(*read_model_config(configs + "qwen3-coder-30b-a3b"));
  EXPECT_EQ(coder.code(), StatusCode::kUnsupported);
  EXPECT_NE(coder.message().find("found a qwen3_moe model, expected qwen3_5_moe"),
            std::string::npos);
}

}  // namespace
}  // namespace moray
