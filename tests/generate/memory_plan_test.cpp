// Plans of the public models, from their configs alone, against sums made by hand.
#include <gtest/gtest.h>

#include <map>

#include "moray/tools.h"
#include "src/formats/checkpoint.h"
#include "src/generate/gpu_plan.h"
#include "src/model/blank_weights.h"

namespace moray {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;
const std::string kConfigs = MORAY_SOURCE_DIR "/tests/configs/";
const std::string k35B = kConfigs + "qwen3.6-35b-a3b";

MemoryPlan plan_of(const std::string& folder, const PlanQuestion& question) {
  const auto plan = plan_memory(folder, question);
  CHECK(plan.ok(), plan.status().message());
  return *plan;
}

std::map<std::string, int64_t> sums(const MemoryPlan& plan) {
  std::map<std::string, int64_t> bytes;
  for (const PlannedBytes& row : plan.rows) bytes[row.place] += row.bytes;
  return bytes;
}

int64_t bytes_of(const MemoryPlan& plan, const std::string& place, const std::string& what) {
  for (const PlannedBytes& row : plan.rows) {
    if (row.place == place && row.what.starts_with(what)) return row.bytes;
  }
  return 0;
}

PlanQuestion question_of(int64_t vram_gib, int64_t ram_gib) {
  PlanQuestion question;
  question.vram_bytes = vram_gib * kGib;
  question.ram_bytes = ram_gib * kGib;
  return question;
}

// Three matrices of 512 x 2048 bytes and 64 scales each, 256-byte aligned: 3,146,496.
TEST(MemoryPlan, BytesOfTheThirtyFiveBillionParameterModel) {
  const MemoryPlan plan = plan_of(k35B, question_of(16, 64));
  EXPECT_EQ(plan.expert_bytes, 3 * 512 * 2048 + 3 * 256);
  EXPECT_EQ(plan.routed_bytes, 40 * 8 * plan.expert_bytes);
  // Projections 273 + 1007, gates and taps 10, router 42, shared 126, routed 1007, head 1017,
  // norms; then 32k of keys and values, 20,480 bytes a token, and S of 30 x 2 MiB with a chunk's
  // inputs.
  const double state = 32768 * 20480.0 + 30 * (2.1e6 + 0.4e6);
  EXPECT_NEAR(static_cast<double>(plan.decode_bytes), 3.484e9 + state, 0.01 * 3.484e9);
  EXPECT_EQ(bytes_of(plan, "vram", "keys and values"), 32768 * 20480);
  EXPECT_EQ(bytes_of(plan, "ram", "embedding"), 2 * 248320 * 2048);
  EXPECT_EQ(bytes_of(plan, "ram", "experts"), 40 * 256 * plan.expert_bytes);
}

TEST(MemoryPlan, BytesOfTheOtherPublicModels) {
  const MemoryPlan next = plan_of(kConfigs + "qwen3-coder-next-80b", question_of(16, 128));
  EXPECT_NEAR(static_cast<double>(next.routed_bytes), 1.510e9, 0.002e9);
  EXPECT_NEAR(static_cast<double>(bytes_of(next, "ram", "experts")), 77.3e9, 0.1e9);
  const MemoryPlan coder = plan_of(kConfigs + "qwen3-coder-30b-a3b", question_of(16, 64));
  EXPECT_EQ(coder.routed_bytes, int64_t{48} * 8 * (3 * 768 * 2048 + 3 * 512));
  EXPECT_EQ(bytes_of(coder, "vram", "delta states"), 0);
}

// Beside the slots lie about 5,269 MiB where a block has 8192 tokens; a slot in each layer is 120.
TEST(MemoryPlan, SlotsFillWhatIsLeft) {
  const int64_t expected[][2] = {{8, 28}, {12, 60}, {16, 92}, {24, 160}, {32, 229}};
  for (const auto& [gib, slots] : expected) {
    const MemoryPlan plan = plan_of(k35B, question_of(gib, 64));
    EXPECT_TRUE(plan.fits) << gib;
    EXPECT_NEAR(static_cast<double>(plan.slots), static_cast<double>(slots), 5) << gib;
    EXPECT_LT(bytes_of(plan, "vram", "unused"), 40 * plan.expert_bytes) << gib;
  }
}

TEST(MemoryPlan, EveryByteIsInARow) {
  for (const int64_t vram : {8, 16, 24, 80}) {
    for (const int64_t ram : {16, 64}) {
      const MemoryPlan plan = plan_of(k35B, question_of(vram, ram));
      auto bytes = sums(plan);
      EXPECT_EQ(bytes["vram"], vram * kGib);
      EXPECT_EQ(bytes["ram"], ram * kGib);
      for (const PlannedBytes& row : plan.rows) EXPECT_GT(row.bytes, 0) << row.what;
    }
  }
}

TEST(MemoryPlan, AWholeModelInVramIsWhatTheEngineUploads) {
  const MemoryPlan plan = plan_of(k35B, question_of(80, 64));
  ASSERT_TRUE(plan.is_resident);
  EXPECT_EQ(plan.slots, 256);
  EXPECT_EQ(plan.hit_rate, 1);
  const int64_t weights = bytes_of(plan, "vram", "trunk") + bytes_of(plan, "vram", "head") +
                          bytes_of(plan, "vram", "embedding") +
                          bytes_of(plan, "vram", "expert slots");
  const auto config = read_model_config(k35B);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(weights, gpu_weights_bytes(blank_weights(*config, HeadFormat::kPublished, nullptr)));
  EXPECT_EQ(bytes_of(plan, "file", "experts"), 0);
}

TEST(MemoryPlan, ShortHostMemoryLeavesExpertsInTheFile) {
  const MemoryPlan plan = plan_of(k35B, question_of(16, 16));
  const int64_t all = 40 * 256 * plan.expert_bytes;
  EXPECT_EQ(bytes_of(plan, "ram", "experts") + bytes_of(plan, "file", "experts"), all);
  EXPECT_GT(bytes_of(plan, "file", "experts"), 14 * kGib);
  const MemoryPlan ample = plan_of(k35B, question_of(16, 64));
  EXPECT_LT(plan.decode_tokens_per_s, ample.decode_tokens_per_s);
  ASSERT_FALSE(plan.nearest.empty());
  EXPECT_TRUE(plan.nearest.front().starts_with("--ram 31GiB")) << plan.nearest.front();
}

// t = B / VRAM + (1 - h) R / link.
TEST(MemoryPlan, DecodeIsTheSerialModel) {
  PlanQuestion question = question_of(16, 64);
  question.vram_gbps = 400;
  question.link_gbps = 27;
  question.hit_rate = 0.9;
  const MemoryPlan plan = plan_of(k35B, question);
  const double seconds = static_cast<double>(plan.decode_bytes) / 400e9 +
                         0.1 * static_cast<double>(plan.routed_bytes) / 27e9;
  EXPECT_NEAR(plan.decode_tokens_per_s, 1 / seconds, 1e-9);
}

TEST(MemoryPlan, WhatDoesNotFitSaysWhatWould) {
  PlanQuestion question = question_of(8, 64);
  question.context = 262144;
  question.parallel = 2;
  const MemoryPlan plan = plan_of(k35B, question);
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.decode_tokens_per_s, 0);
  EXPECT_TRUE(plan.verdict.starts_with("does not fit: found 8192 MiB of VRAM, expected "));
  ASSERT_GE(plan.nearest.size(), 2u);
  // Each of the settings named does fit, and the next larger one does not.
  for (const std::string& setting : plan.nearest) {
    const int64_t number = std::stoll(setting.substr(setting.find(' ')));
    PlanQuestion other = question;
    PlanQuestion beyond = question;
    if (setting.starts_with("--vram")) {
      other.vram_bytes = number * kGib;
      beyond.vram_bytes = (number - 1) * kGib;
    } else if (setting.starts_with("--ctx")) {
      other.context = number;
      beyond.context = number + 128;  // keys come in tiles
    } else {
      ASSERT_TRUE(setting.starts_with("--parallel")) << setting;
      other.parallel = number;
      beyond.parallel = number + 1;
    }
    EXPECT_TRUE(plan_of(k35B, other).fits) << setting;
    EXPECT_FALSE(plan_of(k35B, beyond).fits) << setting;
  }
}

TEST(MemoryPlan, WhatNoModelAllowsIsRefused) {
  PlanQuestion question;
  question.context = 262145;
  EXPECT_EQ(plan_memory(k35B, question).status().message(),
            "context: found 262145 tokens, expected 1 to 262144 (the model's "
            "max_position_embeddings)");
  PlanQuestion drafts;
  drafts.drafts = 3;
  const auto coder = plan_memory(kConfigs + "qwen3-coder-30b-a3b", drafts);
  EXPECT_EQ(coder.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(plan_memory("/nowhere", {}).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace moray
