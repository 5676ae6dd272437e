// A token's logits have the same bits however a prompt is cut and however many threads there are,
// and a state behaves as a value.
#include "fixture.h"

namespace moray {
namespace {

bool same_bits(const float* a, const float* b, size_t count) {
  return count == 0 || std::memcmp(a, b, count * sizeof(float)) == 0;
}

using Case = std::tuple<const char*, Precision>;

class Invariance : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    fixture_ = load_fixture(std::get<0>(GetParam()));
    precision_ = std::get<1>(GetParam());
    Runner whole(*fixture_.weights, precision_);
    expected_ = whole.feed(fixture_.tokens, &expected_hidden_);
  }
  std::span<const int32_t> tokens() const { return fixture_.tokens; }
  void expect_rows(const Matrix& found, size_t begin) const {
    EXPECT_TRUE(same_bits(found.values.data(), expected_.row(static_cast<int64_t>(begin)),
                          found.values.size()))
        << "rows from " << begin;
  }

  Fixture fixture_;
  Precision precision_ = Precision::kFloat32;
  Matrix expected_;
  std::vector<float> expected_hidden_;
};

TEST_P(Invariance, BlockSizesAndThreadCountsKeepEveryBit) {
  for (int64_t block : {1, 7, 64, 256}) {
    for (int threads : {1, 2, 3}) {
      Runner runner(*fixture_.weights, precision_, threads, block);
      std::vector<float> hidden;
      const Matrix found = runner.feed(tokens(), &hidden);
      EXPECT_TRUE(same_bits(found.values.data(), expected_.values.data(), found.values.size()))
          << "block " << block << ", threads " << threads;
      EXPECT_TRUE(same_bits(hidden.data(), expected_hidden_.data(), hidden.size()))
          << "block " << block << ", threads " << threads;
    }
  }
}

TEST_P(Invariance, RandomCutsKeepEveryBit) {
  const uint32_t seed = fresh_seed();
  SCOPED_TRACE("MORAY_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 5; ++round) {
    Runner runner(*fixture_.weights, precision_, 2);
    for (size_t at = 0; at < fixture_.tokens.size();) {
      const size_t count = std::min<size_t>(1 + random() % 90, fixture_.tokens.size() - at);
      expect_rows(runner.feed(tokens().subspan(at, count)), at);
      at += count;
    }
  }
}

TEST_P(Invariance, OnlyTheAskedLogitRowsAreWrittenAndTheyAreTheSame) {
  const ModelConfig& config = fixture_.weights->config;
  ThreadPool pool(2);
  Workspace workspace(config, 256, 256, 2);
  for (int64_t rows : {0, 1, 5}) {
    State state(config, 256, precision_);
    std::vector<float> logits(static_cast<size_t>((rows + 1) * fixture_.vocab()), -7.0f);
    forward(*fixture_.weights, pool, workspace,
            {.tokens = tokens(),
             .state = &state,
             .precision = precision_,
             .logit_rows = rows,
             .logits = logits.data()});
    const auto count = static_cast<size_t>(rows * fixture_.vocab());
    EXPECT_TRUE(same_bits(logits.data(), expected_.row(expected_.rows - rows), count)) << rows;
    EXPECT_TRUE(std::all_of(logits.begin() + static_cast<int64_t>(count), logits.end(),
                            [](float value) { return value == -7.0f; }));
    EXPECT_EQ(state.position(), static_cast<int64_t>(fixture_.tokens.size()));
  }
}

TEST_P(Invariance, ASnapshotContinuesAsTheOriginalDid) {
  for (size_t at : {1, 63, 64, 65, 100}) {
    Runner runner(*fixture_.weights, precision_);
    runner.feed(tokens().first(at));
    const State kept = runner.state().snapshot();
    EXPECT_EQ(kept.position(), static_cast<int64_t>(at));
    expect_rows(runner.feed(tokens().subspan(at)), at);
    // The original went on; the snapshot did not. Restore it twice.
    for (int round = 0; round < 2; ++round) {
      runner.state() = kept.snapshot();
      expect_rows(runner.feed(tokens().subspan(at)), at);
    }
  }
}

TEST_P(Invariance, RewindingWithinTheOpenChunkLeavesNoTrace) {
  Runner runner(*fixture_.weights, precision_);
  for (size_t fed : {40, 64, 65, 100, 128}) {
    runner.state().rewind(0);
    runner.feed(tokens().first(fed));
    const auto limit = static_cast<size_t>(runner.state().rewind_limit());
    EXPECT_EQ(limit, (fed - 1) / 64 * 64 + 1);
    for (size_t back : {limit, (limit + fed) / 2, fed}) {
      const std::vector<int32_t> others(tokens().rbegin(), tokens().rbegin() + 3);
      if (back + others.size() <= (fed - 1) / 64 * 64 + 64) {
        runner.state().rewind(static_cast<int64_t>(back));
        runner.feed(others);  // draft tokens that verification throws away
      }
      runner.state().rewind(static_cast<int64_t>(back));
      expect_rows(runner.feed(tokens().subspan(back, fed - back)), back);
    }
  }
}

TEST_P(Invariance, AUsedStateStartsAfreshAtPositionZero) {
  Runner runner(*fixture_.weights, precision_);
  runner.feed(tokens().subspan(17));
  runner.state().rewind(0);
  expect_rows(runner.feed(tokens()), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Tiny, Invariance,
    ::testing::Combine(::testing::Values("tiny-fused", "tiny-experts", "tiny-fp8"),
                       ::testing::Values(Precision::kFloat32, Precision::kBfloat16)),
    [](const auto& instance) {
      return fixture_label_of(std::get<0>(instance.param)) +
             (std::get<1>(instance.param) == Precision::kFloat32 ? "_f32" : "_bf16");
    });

TEST(StateSize, IsWhatBytesNeededSaid) {
  const Fixture fixture = load_fixture("tiny-fp8");
  const ModelConfig& config = fixture.weights->config;
  for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    const State state(config, 1000, precision);
    EXPECT_EQ(state.bytes(), State::bytes_needed(config, 1000, precision));
    EXPECT_EQ(state.capacity(), 1000);
  }
  // One full layer and MTP: 2 caches x 2 (K, V) x 2 heads x 32 dims x 2 bytes a token.
  EXPECT_EQ(State::bytes_needed(config, 1001, Precision::kBfloat16) -
                State::bytes_needed(config, 1000, Precision::kBfloat16),
            2 * 2 * 2 * 32 * 2);
}

}  // namespace
}  // namespace moray
