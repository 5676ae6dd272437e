// Weights made up from a seed: the same every time, of the shapes a checkpoint has, and tame enough
// to run.
#include "src/model/random_weights.h"

#include <array>
#include <cmath>

#include "fixture.h"
#include "src/model/blank_weights.h"

namespace moray {
namespace {

ModelConfig config_of_fixture(const std::string& name) {
  auto config = read_model_config(data_folder() + name);
  CHECK(config.ok(), config.status().message());
  return *config;
}

std::shared_ptr<const Weights> made(const ModelConfig& config, uint64_t seed, int threads = 2) {
  ThreadPool pool(threads);
  auto weights = random_weights(config, HeadFormat::kPublished, seed, pool, nullptr);
  CHECK(weights.ok(), weights.status().message());
  return *weights;
}

TEST(RandomWeights, HaveTheShapesOfTheCheckpoint) {
  for (const char* name : {"tiny-fused", "tiny-experts"}) {
    Weights bound = *load_fixture(name).weights;
    Weights blank = *made(bound.config, 1);
    const auto expected = list_matrices(bound);
    const auto found = list_matrices(blank);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].part, expected[i].part) << i;
      EXPECT_EQ(found[i].view->rows, expected[i].view->rows) << i;
      EXPECT_EQ(found[i].view->cols, expected[i].view->cols) << i;
      EXPECT_EQ(found[i].view->dtype, expected[i].view->dtype) << i;
    }
  }
}

TEST(RandomWeights, AreAFunctionOfTheSeed) {
  const ModelConfig config = config_of_fixture("tiny-fp8");
  const auto bytes_of = [](const Weights& weights) {
    return std::string(reinterpret_cast<const char*>(weights.arena->data()),
                       static_cast<size_t>(weights.arena->size()));
  };
  const std::string first = bytes_of(*made(config, 7, 1));
  EXPECT_EQ(bytes_of(*made(config, 7, 3)), first);
  EXPECT_NE(bytes_of(*made(config, 8)), first);
}

TEST(RandomWeights, FillTheirRangeEvenly) {
  const auto weights = made(config_of_fixture("tiny-fp8"), fresh_seed());
  Weights copy = *weights;
  for (const MatrixPlace& place : list_matrices(copy)) {
    const MatrixView& view = *place.view;
    if (view.rows * view.cols < 1000) continue;
    const double amplitude = recipe_of(place, 0).amplitude;  // the seed changes keys only
    double sum = 0;
    double squares = 0;
    for (int64_t row = 0; row < view.rows; ++row) {
      for (int64_t col = 0; col < view.cols; ++col) {
        const auto at = static_cast<size_t>(row * view.cols + col);
        double value;
        if (view.dtype == DType::kF8E4M3) {
          value = static_cast<double>(f8e4m3_to_float(static_cast<const uint8_t*>(view.data)[at])) *
                  view.scales[row / kScaleBlock * view.scale_cols() + col / kScaleBlock];
        } else {
          value = bf16_to_float(static_cast<const uint16_t*>(view.data)[at]);
        }
        EXPECT_LE(std::abs(value), amplitude * 1.01);
        sum += value;
        squares += value * value;
      }
    }
    // Standard errors of the mean and of the mean square of a uniform number, six times.
    const auto count = static_cast<double>(view.rows * view.cols);
    EXPECT_LE(std::abs(sum / count), 6 * amplitude / std::sqrt(3 * count));
    EXPECT_NEAR(squares / count, amplitude * amplitude / 3,
                amplitude * amplitude * (6 * 0.3 / std::sqrt(count) + 0.004));
  }
}

// Activations stay finite, logits differ and experts are spread over the tokens.
TEST(RandomWeights, RunThroughAForwardPass) {
  for (const char* name : {"tiny-fp8", "tiny-experts"}) {
    const auto weights = made(config_of_fixture(name), fresh_seed());
    Runner runner(*weights, Precision::kBfloat16);
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 100; ++i)
      tokens.push_back(i * 37 % static_cast<int32_t>(weights->config.vocab_rows));
    const Matrix logits = runner.feed(tokens);
    for (const float logit : logits.values) ASSERT_TRUE(std::isfinite(logit));
    const float* last = logits.row(99);
    EXPECT_GT(
        *std::max_element(last, last + logits.cols) - *std::min_element(last, last + logits.cols),
        3);
    EXPECT_LT(*std::max_element(last, last + logits.cols), 40);
  }
}

}  // namespace
}  // namespace moray
