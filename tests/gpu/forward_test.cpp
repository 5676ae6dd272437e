// The GPU's forward pass against the CPU's and transformers' numbers, on models small enough to
// compare everything: every cut of a sequence, rewinding, greedy decoding, allocations.
//
// Tolerances. Both sides round activations to BF16 at the same places but sum in other orders, so
// that single roundings fall the other way and a random model amplifies them. What that costs is
// measured as KL to transformers' FP32 logits, and compared with what transformers' own BF16 run
// costs on the same tokens (in the goldens); tests/model/golden_test.cpp holds the CPU to the same.
#include <gtest/gtest.h>

#include "src/model/gpu_check.h"
#include "tests/gpu/model.h"
#include "tests/support/gates.h"

namespace moray {
namespace {

class GpuForwardOf : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    MORAY_GPU_TEST();
    fixture_ = load_fixture(GetParam());
    model_ = gpu_model(*fixture_.weights);
    ASSERT_NE(model_, nullptr);
  }
  std::span<const int32_t> tokens() const { return fixture_.tokens; }

  // Of rows [begin, begin + found.rows) of the golden logits.
  void expect_as_good_as_transformers(const Matrix& found, int64_t begin = 0) const {
    double theirs = 0;
    for (int64_t t = 0; t < found.rows; ++t) {
      theirs += fixture_.bfloat16_kl[static_cast<size_t>(begin + t)];
    }
    theirs /= static_cast<double>(found.rows);
    int64_t same_top = 0;
    for (int64_t t = 0; t < found.rows; ++t) {
      same_top +=
          argmax(found.row(t), found.cols) == argmax(fixture_.logits.row(begin + t), found.cols);
    }
    EXPECT_LE(mean_kl(fixture_.logits, found, begin), 1.25 * theirs);
    EXPECT_GE(static_cast<double>(same_top) / static_cast<double>(found.rows), 0.93);
  }

  Fixture fixture_;
  std::shared_ptr<GpuModel> model_;
};

// Names the first layer that goes wrong, where the tests below only say that something did.
TEST_P(GpuForwardOf, EveryDepthOfLayersAgreesWithTheCpu) {
  const std::span<const int32_t> some = tokens().first(5);
  for (size_t depth = 1; depth <= fixture_.weights->layers.size(); ++depth) {
    Weights cut = *fixture_.weights;
    cut.layers.resize(depth);
    cut.config.layer_kinds.resize(depth);
    cut.config.num_layers = static_cast<int64_t>(depth);
    auto shallow = std::make_shared<GpuModel>();
    shallow->device = model_->device;
    shallow->config = cut.config;
    shallow->kernels = model_->kernels;
    const auto stream = gpu::test_stream();
    auto uploaded = upload_weights(model_->device, *stream, cut, nullptr);
    ASSERT_TRUE(uploaded.ok()) << uploaded.status().message();
    shallow->weights = std::move(uploaded).value();
    Runner cpu(cut, Precision::kBfloat16);
    const Matrix expected = cpu.feed(some);
    GpuRunner gpu(shallow, false);
    // A layer turns roundings of 2^-9 into a few times as much; an error in a kernel shows as 0.1
    // and more (mutation_test.cpp).
    const double allowed = 0.01 * static_cast<double>(depth);
    EXPECT_LE(distance(gpu.feed(some, 1), expected).worst, allowed) << depth << " layers";
  }
}

TEST_P(GpuForwardOf, StepsCostNoMoreThanTransformersOwnRounding) {
  GpuRunner runner(model_, false);
  expect_as_good_as_transformers(runner.feed(tokens(), 1));
}

TEST_P(GpuForwardOf, BlocksCostNoMoreThanTransformersOwnRounding) {
  for (const int64_t block : {17, 64, 100, 200}) {
    SCOPED_TRACE(block);
    GpuRunner runner(model_, false);
    expect_as_good_as_transformers(runner.feed(tokens(), block));
  }
}

TEST_P(GpuForwardOf, ATokensLogitsDoNotDependOnTheCutIntoSteps) {
  GpuRunner one(model_, false);
  const Matrix expected = one.feed(tokens(), 1);
  for (const int64_t count : {2, 7, 8, 9, 16}) {
    GpuRunner several(model_, false);
    EXPECT_TRUE(several.feed(tokens(), count).values == expected.values)
        << count << " tokens a step";
  }
}

TEST_P(GpuForwardOf, AStepAfterABlockIsThatOfALongerBlock) {
  for (const size_t count : {20, 63, 64, 65, 66, 128, 129, 190}) {
    GpuRunner whole(model_, false);
    const Matrix expected = whole.feed(tokens().first(count), 256);
    GpuRunner parts(model_, false);
    parts.feed(tokens().first(count - 1), 256);
    const Matrix found = parts.feed(tokens().subspan(count - 1, 1), 1);
    const auto last = static_cast<int64_t>(count) - 1;
    EXPECT_LE(row_distance(found.row(0), expected.row(last), found.cols), 0.05) << count;
  }
}

TEST_P(GpuForwardOf, ForgettingTokensOfTheOpenChunkLeavesNoTrace) {
  GpuRunner runner(model_, false);
  const Matrix expected = runner.feed(tokens().first(100), 1);
  runner.state().rewind(80);
  const std::vector<int32_t> other(5, 3);
  runner.feed(other, 1);
  runner.state().rewind(80);
  const Matrix again = runner.feed(tokens().subspan(80, 20), 1);
  for (int64_t t = 0; t < 20; ++t) {
    EXPECT_EQ(std::memcmp(again.row(t), expected.row(80 + t), sizeof(float) * again.cols), 0) << t;
  }
  runner.state().rewind(0);
  EXPECT_TRUE(runner.feed(tokens().first(100), 1).values == expected.values);
}

TEST_P(GpuForwardOf, AStateMovesToTheHostAndBack) {
  GpuRunner runner(model_, false);
  runner.feed(tokens().first(90), 1);
  const Matrix expected = runner.feed(tokens().subspan(90, 1), 1);
  runner.state().rewind(90);
  State host(fixture_.weights->config, 512, Precision::kBfloat16);
  ASSERT_TRUE(runner.state().download(runner.forward().stream(), host).ok());
  GpuRunner other(model_, false);
  ASSERT_TRUE(other.state().upload(other.forward().stream(), host).ok());
  EXPECT_EQ(other.state().position(), 90);
  EXPECT_TRUE(other.feed(tokens().subspan(90, 1), 1).values == expected.values);
}

// The device's own loop picks what a host that looks at every row of logits picks, wherever the
// answer is ended, and leaves the state as if nothing had run past the end.
TEST_P(GpuForwardOf, GreedyDecodingEqualsPickingOnTheHost) {
  GpuRunner host(model_, false);
  std::vector<int32_t> expected = {tokens()[0]};
  std::vector<Matrix> rows;
  for (int i = 0; i <= 150; ++i) {
    const int32_t token = expected.back();
    rows.push_back(host.feed({&token, 1}, 1));
    expected.push_back(static_cast<int32_t>(argmax(rows.back().row(0), rows.back().cols)));
  }
  const int64_t vocab = rows[0].cols;
  for (const int64_t end : {1, 2, 63, 64, 65, 66, 67, 128, 150}) {
    for (const bool is_refused : {false, true}) {  // by take, or by the count
      GpuRunner runner(model_, false);
      std::vector<int32_t> found = {tokens()[0]};
      std::vector<float> logits(static_cast<size_t>(vocab));
      const auto take = [&](int32_t token) {
        found.push_back(token);
        return !is_refused || static_cast<int64_t>(found.size()) <= end;
      };
      const Status status = runner.forward().decode_greedily(tokens()[0], is_refused ? 200 : end,
                                                             logits.data(), take);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(found, std::vector<int32_t>(expected.begin(), expected.begin() + end + 1)) << end;
      EXPECT_EQ(runner.state().position(), end);
      EXPECT_TRUE(logits == rows[static_cast<size_t>(end) - 1].values) << end;
      const int32_t next = expected[static_cast<size_t>(end)];
      const Matrix after = runner.feed({&next, 1}, 1);
      EXPECT_TRUE(after.values == rows[static_cast<size_t>(end)].values) << end;
    }
  }
}

TEST_P(GpuForwardOf, TheThreeWaysToTheSameLogitsAgree) {
  GpuRunner runner(model_, true);
  const auto check = check_paths(runner.forward(), fixture_.vocab());
  ASSERT_TRUE(check.ok()) << check.status().message();
  EXPECT_LE(check->block_kl, kGpuCheckKlMax / 2);
  EXPECT_LE(check->w8a8_kl, kGpuCheckKlMax / 2);
  EXPECT_EQ(runner.state().position(), 0);
}

TEST_P(GpuForwardOf, LogitsThatHaveNothingInCommonDifferByMoreThanTheCheckAllows) {
  // Blocks that see other tokens than the steps stand for a kernel that is wrong.
  GpuRunner good(model_, false);
  GpuRunner bad(model_, false);
  const Matrix steps = good.feed(tokens().first(64), 16);
  std::vector<int32_t> shifted(tokens().begin() + 1, tokens().begin() + 65);
  const Matrix blocks = bad.feed(shifted, 64);
  EXPECT_GT(mean_kl(steps, blocks), kGpuCheckKlMax);
}

TEST_P(GpuForwardOf, NothingIsAllocatedAfterOpening) {
  GpuRunner runner(model_, false);
  std::vector<float> logits(static_cast<size_t>(fixture_.vocab()));
  const gpu::AllocationCounts before = gpu::allocation_counts();
  ASSERT_TRUE(runner.forward().forward(tokens().first(100), 1, logits.data()).ok());
  int left = 50;
  ASSERT_TRUE(runner.forward()
                  .decode_greedily(1, 60, logits.data(), [&](int32_t) { return --left > 0; })
                  .ok());
  const gpu::AllocationCounts after = gpu::allocation_counts();
  EXPECT_EQ(after.device, before.device);
  EXPECT_EQ(after.pinned, before.pinned);
}

INSTANTIATE_TEST_SUITE_P(Tiny, GpuForwardOf,
                         ::testing::Values("tiny-fused", "tiny-experts", "tiny-fp8"),
                         fixture_label);

}  // namespace
}  // namespace moray
