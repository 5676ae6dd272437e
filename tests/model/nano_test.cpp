// The shipped model's logits against transformers at the start and the end of 8,192 tokens of text.
//
// The golden file (tools/compare_transformers.py --golden) holds, at 64 positions of the first 512
// and at the last 64, the 32 most likely tokens with their log-probabilities. KL is taken over
// these and one cell for all others, which bounds the full KL from below.
#include <filesystem>

#include "fixture.h"

namespace moray {
namespace {

constexpr int64_t kBlockTokens = 256;

struct Golden {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> ids;            // [positions, top]
  std::vector<float> log_probability;  // [positions, top]
  size_t top() const { return ids.size() / positions.size(); }
};

// Log-probabilities of the golden's ids from a row of logits.
std::vector<double> log_probabilities(const float* logits, int64_t vocab,
                                      std::span<const int32_t> ids) {
  const double largest = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(logits[i] - largest);
  std::vector<double> found;
  for (int32_t id : ids) found.push_back(logits[id] - largest - std::log(sum));
  return found;
}

double coarse_kl(std::span<const float> golden, std::span<const double> found) {
  double kl = 0;
  double golden_rest = 1;
  double found_rest = 1;
  for (size_t i = 0; i < golden.size(); ++i) {
    kl += std::exp(golden[i]) * (golden[i] - found[i]);
    golden_rest -= std::exp(golden[i]);
    found_rest -= std::exp(found[i]);
  }
  if (golden_rest > 1e-6 && found_rest > 0) kl += golden_rest * std::log(golden_rest / found_rest);
  return kl;
}

// What a range of positions adds up to.
struct Score {
  double kl = 0;
  int64_t same_top = 0;
  int64_t count = 0;
};

void expect_near(const Score& score, double kl_allowed, double top_needed) {
  const auto count = static_cast<double>(score.count);
  EXPECT_EQ(score.count, 64);
  EXPECT_LE(score.kl / count, kl_allowed);
  EXPECT_GE(static_cast<double>(score.same_top) / count, top_needed);
}

void compare(const Weights& weights, const Golden& golden, const cpu::Kernels& kernels,
             Precision precision, double kl_allowed, double top_needed) {
  const auto count = static_cast<int64_t>(golden.tokens.size());
  const int64_t vocab = weights.config.vocab_rows;
  ThreadPool pool(2);
  const cpu::Context context(pool, kernels);
  Workspace workspace(weights.config, kBlockTokens, count, 2);
  State state(weights.config, count, precision);
  std::vector<float> logits(static_cast<size_t>(kBlockTokens * vocab));
  Score first;
  Score last;
  size_t next = 0;
  for (int64_t at = 0; at < count; at += kBlockTokens) {
    const int64_t rows = std::min(kBlockTokens, count - at);
    const bool wanted = next < golden.positions.size() && golden.positions[next] < at + rows;
    forward(
        weights, context, workspace,
        {.tokens =
             std::span(golden.tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(rows)),
         .state = &state,
         .precision = precision,
         .logit_rows = wanted ? rows : 0,
         .logits = logits.data()});
    for (; next < golden.positions.size() && golden.positions[next] < at + rows; ++next) {
      const float* row = logits.data() + (golden.positions[next] - at) * vocab;
      const std::span ids = std::span(golden.ids).subspan(next * golden.top(), golden.top());
      Score& score = golden.positions[next] < 512 ? first : last;
      score.kl +=
          coarse_kl(std::span(golden.log_probability).subspan(next * golden.top(), golden.top()),
                    log_probabilities(row, vocab, ids));
      score.same_top += argmax(row, vocab) == ids[0];
      ++score.count;
    }
  }
  expect_near(first, kl_allowed, top_needed);
  expect_near(last, kl_allowed, top_needed);
}

class Nano : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = std::string(MORAY_SOURCE_DIR) + "/models/moray-nano";
    const std::string path = data_folder() + "moray-nano-golden.safetensors";
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << "models/moray-nano is not there";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
    auto checkpoint = Checkpoint::open(folder);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    auto weights = load_weights(*checkpoint, {});
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    weights_ = *weights;
    auto file = SafetensorsFile::open(path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    golden_ = {read_values<int32_t>(*file, "tokens"), read_values<int32_t>(*file, "positions"),
               read_values<int32_t>(*file, "top_ids"),
               read_values<float>(*file, "top_log_probabilities")};
    ASSERT_EQ(golden_.tokens.size(), 8192u);
  }
  std::shared_ptr<const Weights> weights_;
  Golden golden_;
};

TEST_F(Nano, DefaultPrecisionAgreesWithTransformersAtEveryInstructionLevel) {
  for (cpu::Level level : {cpu::Level::kAvx2, cpu::Level::kAvx512}) {
    const auto kernels = cpu::kernels_for(level);
    if (!kernels.ok()) continue;  // the best level is one of the two, so that one always runs
    SCOPED_TRACE(std::string(cpu::level_name(level)));
    compare(*weights_, golden_, **kernels, Precision::kBfloat16, 1e-3, 0.99);
  }
}

// FP32 sums in another order move a log-probability by some 1e-5, its KL by the square of that.
TEST_F(Nano, Float32AgreesWithTransformersClosely) {
  compare(*weights_, golden_, cpu::best_kernels(), Precision::kFloat32, 1e-6, 1.0);
}

}  // namespace
}  // namespace moray
