// The engine on the tiny fixture models: opens what it should, refuses what it must, and its
// sessions agree with each other whatever the threads, blocks and neighbours.
#include "moray/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "src/gpu/device.h"
#include "src/kernels/cpu/dispatch.h"
#include "tests/support/temp_folder.h"

namespace moray {
namespace {

const std::string kTinyModel = MORAY_SOURCE_DIR "/tests/data/tiny-experts";

std::shared_ptr<const Engine> open_tiny(EngineOptions options = {}) {
  options.model_folder = kTinyModel;
  if (options.device == "auto") options.device = "cpu";  // these hold on every machine
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? *engine : nullptr;
}

std::vector<TokenId> some_prompt(const Engine& engine, size_t count) {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>((i * 7919 + 13) % 256));
  }
  EXPECT_GT(engine.tokenizer().token_count(), 256);
  return tokens;
}

std::vector<TokenId> answer_of(const Engine& engine, uint64_t seed) {
  GenerateOptions options;
  options.sampling.temperature = 1;
  options.sampling.seed = seed;
  options.max_tokens = 60;
  options.ignore_end_tokens = true;
  const auto session = *engine.new_session();
  return session->generate(some_prompt(engine, 150), options)->tokens;
}

TEST(Engine, KnowsWhatItIs) {
  const auto engine = open_tiny({.threads = 2});
  EXPECT_EQ(engine->model_name(), "tiny-experts");
  EXPECT_EQ(engine->context(), 4096);
  EXPECT_EQ(engine->end_tokens(), (std::vector<TokenId>{285, 283}));
  EXPECT_EQ(engine->default_sampling().temperature, 0);
  EXPECT_NE(engine->chat_template(), nullptr);
  EXPECT_EQ(engine->kv_line(), "BF16");
  EXPECT_EQ(engine->weights_line(), "BF16");
  EXPECT_NE(engine->backend_line().find("2 threads (the best level"), std::string::npos)
      << engine->backend_line();
  EXPECT_GT(engine->decode_bytes(0), 100000);
  EXPECT_GT(engine->decode_bytes(100), engine->decode_bytes(0));
  EXPECT_GT(*engine->measure_read_seconds(0), 0);
  EXPECT_EQ(open_tiny({.float32 = true})->kv_line(), "F32");
}

TEST(Engine, ThreadsAndBlocksDoNotChangeAnAnswer) {
  const std::vector<TokenId> expected = answer_of(*open_tiny({.threads = 1}), 3);
  ASSERT_EQ(expected.size(), 60u);
  EXPECT_EQ(answer_of(*open_tiny({.threads = 3}), 3), expected);
  EXPECT_EQ(answer_of(*open_tiny({.block_tokens = 7}), 3), expected);
  EXPECT_EQ(answer_of(*open_tiny({.context = 300}), 3), expected);
  EXPECT_NE(answer_of(*open_tiny(), 4), expected);
}

TEST(Engine, EveryLevelOfThisMachineCanBeAskedFor) {
  const auto best = cpu::cpu_level();
  if (!best.ok()) GTEST_SKIP() << best.status().message();
  EXPECT_NE(open_tiny({.cpu_level = "avx2"})->backend_line().find("cpu avx2, "), std::string::npos);
  EXPECT_EQ(open_tiny({.cpu_level = "avx2"})->backend_line().find("BF16"), std::string::npos);
  if (*best == cpu::Level::kAvx512) {  // a machine without the fast products is told so
    const char* products = cpu::has_bf16_products(cpu::best_kernels()) ? "with BF16 products"
                                                                       : "without BF16 products";
    EXPECT_NE(open_tiny()->backend_line().find(products), std::string::npos);
  }
  EXPECT_EQ(Engine::open({.model_folder = kTinyModel, .cpu_level = "sse"}).status().message(),
            "cpu: found 'sse', expected avx2 or avx512");
}

TEST(Engine, SessionsInThreadsDoNotDisturbEachOther) {
  const auto engine = open_tiny({.threads = 2});
  const std::vector<TokenId> expected[2] = {answer_of(*engine, 1), answer_of(*engine, 2)};
  std::vector<TokenId> found[2];
  std::thread other([&] { found[1] = answer_of(*engine, 2); });
  found[0] = answer_of(*engine, 1);
  other.join();
  EXPECT_EQ(found[0], expected[0]);
  EXPECT_EQ(found[1], expected[1]);
}

TEST(Engine, ASessionOutlivesTheEnginesHandle) {
  auto engine = open_tiny();
  const std::vector<TokenId> prompt = some_prompt(*engine, 9);
  const auto session = *engine->new_session();
  engine.reset();
  GenerateOptions options;
  options.max_tokens = 5;
  options.ignore_end_tokens = true;
  EXPECT_EQ(session->generate(prompt, options)->tokens.size(), 5u);
}

TEST(Engine, ScoresAgreeWhetherFedAtOnceOrInParts) {
  const auto engine = open_tiny({.block_tokens = 64});
  const std::vector<TokenId> tokens = some_prompt(*engine, 200);
  const auto whole = *(*engine->new_session())->score(tokens, nullptr);
  ASSERT_EQ(whole.size(), 199u);
  const auto session = *engine->new_session();
  std::vector<double> parts = *session->score({tokens.begin(), tokens.begin() + 77}, nullptr);
  const auto rest = *session->score({tokens.begin() + 77, tokens.end()}, nullptr);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, whole);
}

TEST(Engine, ResetForgets) {
  const auto engine = open_tiny();
  const auto session = *engine->new_session();
  GenerateOptions options;
  options.max_tokens = 20;
  options.ignore_end_tokens = true;
  const auto first = session->generate(some_prompt(*engine, 100), options)->tokens;
  session->reset();
  EXPECT_EQ(session->generate(some_prompt(*engine, 100), options)->tokens, first);
}

TEST(Engine, LoadingCanBeCancelled) {
  const auto result =
      Engine::open({.model_folder = kTinyModel, .on_load = [](int64_t, int64_t) { return false; }});
  EXPECT_EQ(result.status().code(), StatusCode::kCancelled);
}

TEST(Engine, OptionsOutOfRangeAreNamed) {
  const auto message = [](EngineOptions options) {
    options.model_folder = kTinyModel;
    const auto result = Engine::open(options);
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    return result.status().message();
  };
  EXPECT_EQ(message({.threads = -1}), "threads: found -1, expected 0 (one a core) to 1024");
  EXPECT_EQ(message({.block_tokens = -1}),
            "block_tokens: found -1, expected 0 (what suits) to 8192");
  EXPECT_EQ(message({.device = "gpu"}), "device: found 'gpu', expected auto, cpu, cuda or cuda:N");
  EXPECT_EQ(message({.device = "cuda:x"}),
            "device: found 'cuda:x', expected auto, cpu, cuda or cuda:N");
  EXPECT_EQ(message({.device = "cuda", .float32 = true}),
            "device: found cuda with FP32 activations, expected cpu or auto");
  EXPECT_NE(message({.context = -5}).find("context: found -5 tokens"), std::string::npos);
}

// Whether this machine has a GPU or not: the 99th of them it has not.
TEST(Engine, AGpuThatIsNotThereIsAnErrorOrAReasonToUseTheCpu) {
  const auto forced = Engine::open({.model_folder = kTinyModel, .device = "cuda:99"});
  ASSERT_FALSE(forced.ok());
  EXPECT_FALSE(forced.status().message().empty());
  EXPECT_EQ(forced.status().message().find('\n'), std::string::npos);
  if (gpu::list_devices().ok()) GTEST_SKIP() << "this machine has a GPU";
  const auto engine = Engine::open({.model_folder = kTinyModel});
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_TRUE((*engine)->backend_line().starts_with("cpu ")) << (*engine)->backend_line();
  const auto& notes = (*engine)->notes();
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
    return note.starts_with("the CPU computes; ");
  }));
  EXPECT_EQ((*engine)->measure_stages(0).status().code(), StatusCode::kUnsupported);
  EXPECT_FALSE((*engine)->device_facts().has_value());
}

TEST(Engine, RandomWeightsNeedAConfigAlone) {
  const auto engine = open_tiny({.random_weights = 3});
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(engine->tokenizer_status().ok());  // this folder has one
  EXPECT_EQ(engine->weights_line(), "BF16, random");
  EXPECT_EQ(answer_of(*engine, 1), answer_of(*open_tiny({.random_weights = 3}), 1));
  EXPECT_NE(answer_of(*engine, 1), answer_of(*open_tiny({.random_weights = 4}), 1));
}

TEST(Engine, SamplingDefaultsComeFromTheModel) {
  TempFolder folder;
  const std::string model = folder / "model";
  std::filesystem::copy(kTinyModel, model, std::filesystem::copy_options::recursive);
  const auto sampling_with = [&](const std::string& text) {
    folder.write("model/generation_config.json", text);
    const auto engine = Engine::open({.model_folder = model});
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return (*engine)->default_sampling();
  };
  const SamplingOptions given = sampling_with(
      R"({"eos_token_id": 285, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1,
          "repetition_penalty": 1.05, "presence_penalty": 1.5})");
  EXPECT_EQ(given.temperature, 0.6);
  EXPECT_EQ(given.top_k, 20);
  EXPECT_EQ(given.top_p, 0.95);
  EXPECT_EQ(given.min_p, 0.1);
  EXPECT_EQ(given.repetition_penalty, 1.05);
  EXPECT_EQ(given.presence_penalty, 1.5);
  EXPECT_EQ(sampling_with(R"({"do_sample": false, "temperature": 0.6})").temperature, 0);
  folder.write("model/generation_config.json", R"({"temperature": 1000})");
  EXPECT_EQ(Engine::open({.model_folder = model}).status().code(), StatusCode::kInvalidFile);
}

// B49: more tokens than the head has rows for.
TEST(Engine, B49ATokenizerLargerThanTheHeadIsRefused) {
  TempFolder folder;
  const std::string model = folder / "model";
  std::filesystem::copy(kTinyModel, model, std::filesystem::copy_options::recursive);
  const auto text_of = [&](const std::string& name) {
    std::ifstream in(model + "/" + name);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  std::string tokenizer = text_of("tokenizer.json");
  const size_t at = tokenizer.find("\"</think>\"");
  ASSERT_NE(at, std::string::npos);
  const size_t id = tokenizer.rfind("297", at);
  ASSERT_NE(id, std::string::npos);
  tokenizer.replace(id, 3, "320");
  folder.write("model/tokenizer.json", tokenizer);
  const auto result = Engine::open({.model_folder = model});
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidFile);
  EXPECT_NE(result.status().message().find("found 321 tokens, expected at most 320"),
            std::string::npos)
      << result.status().message();
}

}  // namespace
}  // namespace moray
