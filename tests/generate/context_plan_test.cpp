// The context plan: what fits is granted, what does not is refused with numbers and a way out.
#include "src/generate/context_plan.h"

#include <gtest/gtest.h>

#include "src/generate/available_memory.h"
#include "src/generate/model_names.h"

namespace moray {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

// 1 MiB of fixed state and 1 KiB a token.
ContextQuestion question_with(int64_t available_mebibytes, int64_t requested = 0) {
  return {.requested = requested,
          .max_positions = 262144,
          .available_bytes = available_mebibytes * kMebibyte,
          .weight_bytes = 40 * kMebibyte,
          .fixed_bytes = 9 * kMebibyte,
          .state_bytes = [](int64_t tokens) { return kMebibyte + tokens * 1024; }};
}

TEST(ContextPlan, TakesTheModelsOwnWhereMemoryAllows) {
  EXPECT_EQ(*plan_context(question_with(10000)), 262144);
}

TEST(ContextPlan, TakesHalfOfWhatTheWeightsLeave) {
  // 149 - 49 = 100 MiB, half is 50, less 1 MiB fixed: 49 * 1024 tokens.
  EXPECT_EQ(*plan_context(question_with(149)), 49 * 1024);
}

TEST(ContextPlan, GrantsAWishUpToTheLastByte) {
  EXPECT_EQ(*plan_context(question_with(149, 99 * 1024)), 99 * 1024);
  const auto refused = plan_context(question_with(149, 99 * 1024 + 1));
  ASSERT_EQ(refused.status().code(), StatusCode::kExhausted);
  EXPECT_EQ(refused.status().message(),
            "memory: found 149.0 MiB available, expected 149.0 MiB for a context of 101377 tokens "
            "(40.0 weights, 9.0 workspace, 100.0 state); a context of 101376 would fit");
}

TEST(ContextPlan, RefusesWhenNothingUsefulFits) {
  const auto refused = plan_context(question_with(50));
  ASSERT_EQ(refused.status().code(), StatusCode::kExhausted);
  EXPECT_NE(refused.status().message().find("no context would fit"), std::string::npos)
      << refused.status().message();
  EXPECT_EQ(plan_context(question_with(20)).status().code(), StatusCode::kExhausted);
}

TEST(ContextPlan, RefusesMoreThanTheModelHas) {
  const auto refused = plan_context(question_with(10000, 262145));
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().message(),
            "context: found 262145 tokens, expected 1 to 262144 (the model's "
            "max_position_embeddings)");
}

TEST(AvailableMemory, ReadsTheKernelsLine) {
  EXPECT_EQ(parse_mem_available("MemTotal:       1 kB\nMemAvailable:   2048 kB\n"), 2048 * 1024);
  EXPECT_FALSE(parse_mem_available("MemTotal: 1 kB\n").has_value());
  EXPECT_FALSE(parse_mem_available("").has_value());
}

TEST(AvailableMemory, IsPlausibleHere) {
  EXPECT_GT(available_memory_bytes(), 16 * kMebibyte);
}

TEST(ModelNames, ComeFromTheFolder) {
  EXPECT_EQ(model_display_name("models/moray-nano"), "moray-nano");
  EXPECT_EQ(model_display_name("models/moray-nano/"), "moray-nano");
  EXPECT_EQ(model_display_name("./x/../moray-nano/."), "moray-nano");
  EXPECT_EQ(model_display_name("cache/hub/models--Qwen--Qwen3-Next/snapshots/1a2b"),
            "Qwen/Qwen3-Next");
}

}  // namespace
}  // namespace moray
