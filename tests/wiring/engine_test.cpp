// The engine with a GPU that is none (host_device.h): opening, sessions, greedy answers, random
// weights, measurements.
#include "moray/engine.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/temp_folder.h"

namespace moray {
namespace {

const std::string kTinyModel = MORAY_SOURCE_DIR "/tests/data/tiny-experts";

std::shared_ptr<const Engine> open_tiny(EngineOptions options = {}) {
  options.model_folder = kTinyModel;
  if (options.context == 0) options.context = 600;
  const auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? *engine : nullptr;
}

GenerateOptions answer_of(int64_t tokens) {
  GenerateOptions options;
  options.max_tokens = tokens;
  options.ignore_end_tokens = true;
  return options;
}

TEST(GpuEngine, IsTakenWhenThereIsOne) {
  EXPECT_EQ(open_tiny()->backend_line(), "cuda:0 host memory (sm_90a), loops");
  EXPECT_TRUE(open_tiny()->device_facts().has_value());
  EXPECT_EQ(open_tiny({.device = "cpu"})->backend_line().find("cuda"), std::string::npos);
  EXPECT_FALSE(open_tiny({.device = "cpu"})->device_facts().has_value());
}

TEST(GpuEngine, WhatDoesNotFitComesBackToTheCpuWithTheReason) {
  EXPECT_EQ(
      Engine::open({.model_folder = kTinyModel, .device = "cuda", .context = 5000}).status().code(),
      StatusCode::kInvalidArgument);
  const auto engine = open_tiny({.float32 = true});
  EXPECT_EQ(engine->kv_line(), "F32");
}

// The device's loop, the host's sampler on the same logits, and the same again in a used session.
TEST(GpuEngine, GreedyAnswersAreThoseOfTheHostsSampler) {
  const auto engine = open_tiny();
  const std::vector<TokenId> prompt = {7, 100, 31, 5};
  const auto session = *engine->new_session();
  const auto fast = session->generate(prompt, answer_of(150));
  ASSERT_TRUE(fast.ok()) << fast.status().message();
  EXPECT_EQ(fast->tokens.size(), 150u);
  EXPECT_EQ(fast->stop_reason, StopReason::kMaxTokens);
  EXPECT_EQ(session->tokens().size(), prompt.size() + 149);
  session->reset();
  GenerateOptions through_host = answer_of(150);
  through_host.sampling.logit_bias = {{0, 0.0f}};  // changes nothing, but is the host's business
  EXPECT_EQ(session->generate(prompt, through_host)->tokens, fast->tokens);
  session->reset();
  GenerateOptions stopped = answer_of(150);
  stopped.stop_tokens = {fast->tokens[70]};
  const auto first = session->generate(prompt, stopped);
  const auto rest = session->generate({first->tokens.back()}, answer_of(20));
  ASSERT_TRUE(rest.ok()) << rest.status().message();
  const auto begin = fast->tokens.begin() + static_cast<std::ptrdiff_t>(first->tokens.size());
  EXPECT_EQ(rest->tokens, std::vector<TokenId>(begin, begin + 20));
}

// After an answer that an end token stopped, an empty prompt samples its place again.
TEST(GpuEngine, AnAnswerCanBeResumedFromItsLastLogits) {
  const auto engine = open_tiny();
  const auto session = *engine->new_session();
  for (const size_t length : {1, 30, 60, 61, 62, 63, 64, 65, 100}) {
    session->reset();
    const auto whole = session->generate({9, 9}, answer_of(static_cast<int64_t>(length)));
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    const auto again = session->generate({}, answer_of(1));
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->tokens.front(), whole->tokens.back()) << length;
  }
}

TEST(GpuEngine, HoldsOneSessionAtATime) {
  const auto engine = open_tiny();
  auto session = *engine->new_session();
  EXPECT_EQ(engine->new_session().status().code(), StatusCode::kExhausted);
  session.reset();
  EXPECT_TRUE(engine->new_session().ok());
}

TEST(GpuEngine, ScoresAreTheCpusButForRounding) {
  const auto gpu = open_tiny();
  const auto cpu = open_tiny({.device = "cpu"});
  std::vector<TokenId> tokens;
  for (int i = 0; i < 150; ++i) tokens.push_back((i * 7919 + 13) % 256);
  const auto found = (*gpu->new_session())->score(tokens, nullptr);
  const auto expected = (*cpu->new_session())->score(tokens, nullptr);
  ASSERT_TRUE(found.ok()) << found.status().message();
  double difference = 0;
  for (size_t i = 0; i < found->size(); ++i) difference += std::abs((*found)[i] - (*expected)[i]);
  EXPECT_LE(difference / static_cast<double>(found->size()), 0.1);
  EXPECT_GT(difference, 0);
}

// Of 150 tokens, the last 50 by a call that finds the others in the cache.
std::vector<float> last_logits(const Engine& engine) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < 150; ++i) tokens.push_back((i * 7919 + 13) % 256);
  const auto session = *engine.new_session();
  EXPECT_TRUE(session->feed({tokens.begin(), tokens.begin() + 100}, nullptr).ok());
  auto logits = session->logits({tokens.begin() + 100, tokens.end()});
  EXPECT_TRUE(logits.ok()) << logits.status().message();
  return logits.ok() ? *std::move(logits) : std::vector<float>();
}

TEST(GpuEngine, LossyOptionsSayWhatIsOnAndCostLittle) {
  const auto lossless = open_tiny();
  EXPECT_EQ(lossless->lossy_line(), "");
  const std::vector<float> expected = last_logits(*lossless);
  const struct {
    EngineOptions options;
    const char* line;
    const char* kv;
  } cases[] = {{{.fp8_head = true}, "lm-head=fp8", "BF16"},
               {{.fp8_kv = true}, "kv-type=fp8", "FP8"},
               {{.fast = true}, "lm-head=fp8 kv-type=fp8", "FP8"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.line);
    const auto engine = open_tiny(c.options);
    EXPECT_EQ(engine->lossy_line(), c.line);
    EXPECT_EQ(engine->kv_line(), c.kv);
    EXPECT_LT(engine->decode_bytes(300), lossless->decode_bytes(300));
    const std::vector<float> found = last_logits(*engine);
    ASSERT_EQ(found.size(), expected.size());
    double squares = 0, differences = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      squares += double{expected[i]} * expected[i];
      differences += std::pow(double{found[i]} - expected[i], 2);
    }
    EXPECT_GT(differences, 0);
    EXPECT_LT(differences, 0.02 * squares);  // E4M3 errs by 2^-4 at most: 0.004 of a square
  }
  EXPECT_EQ(open_tiny({.device = "cpu", .fast = true})->lossy_line(), "lm-head=fp8");
  EXPECT_EQ(
      Engine::open({.model_folder = kTinyModel, .device = "cpu", .fp8_kv = true}).status().code(),
      StatusCode::kUnsupported);
}

TEST(GpuEngine, AConfigAloneCanBeMeasured) {
  TempFolder folder;
  std::ifstream in(std::string(MORAY_SOURCE_DIR) + "/tests/data/tiny-fp8/config.json");
  const std::string config(std::istreambuf_iterator<char>(in), {});
  folder.write("model/config.json", config);
  for (const char* device : {"cuda", "cpu"}) {
    SCOPED_TRACE(device);
    const auto engine = Engine::open(
        {.model_folder = folder / "model", .device = device, .random_weights = 5, .context = 256});
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    EXPECT_EQ((*engine)->tokenizer_status().code(), StatusCode::kNotFound);
    EXPECT_NE((*engine)->weights_line().find("random"), std::string::npos);
    const auto session = *(*engine)->new_session();
    ASSERT_TRUE(session->feed(std::vector<TokenId>(100, 3), nullptr).ok());
    const auto tokens = session->continue_greedily(1, 20);
    ASSERT_TRUE(tokens.ok()) << tokens.status().message();
    EXPECT_EQ(tokens->size(), 20u);
    EXPECT_EQ(session->tokens().size(), 120u);
    EXPECT_EQ(session->generate({1}, answer_of(1)).status().code(), StatusCode::kUnsupported);
    EXPECT_GT(*(*(*engine)->step_reader(10))->read_seconds(), 0);
  }
}

TEST(GpuEngine, EveryStageOfAStepIsMeasured) {
  const auto engine = open_tiny();
  for (const int64_t depth : {0, 64, 100}) {
    const auto stages = engine->measure_stages(depth);
    ASSERT_TRUE(stages.ok()) << stages.status().message();
    EXPECT_EQ(stages->size(), 10u);
    for (const StageTime& stage : *stages) {
      EXPECT_GT(stage.launches, 0) << stage.name;
      EXPECT_GT(stage.bytes, 0) << stage.name;
    }
  }
  EXPECT_EQ(engine->measure_stages(599).status().code(), StatusCode::kExhausted);
  EXPECT_TRUE(engine->new_session().ok());
}

}  // namespace
}  // namespace moray
