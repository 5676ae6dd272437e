// The multi-token-prediction head against a torch head on transformers' decoder layer.
#include "fixture.h"

namespace moray {
namespace {

class Mtp : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    fixture_ = load_fixture(GetParam());
    ASSERT_TRUE(has_mtp(*fixture_.weights));
  }
  std::span<const int32_t> tokens() const { return fixture_.tokens; }

  // The golden rows are those of mtp_positions.
  void expect_golden(const Matrix& found) const {
    for (size_t i = 0; i < fixture_.mtp_positions.size(); ++i) {
      const int64_t t = fixture_.mtp_positions[i];
      EXPECT_LE(
          row_distance(found.row(t), fixture_.mtp_logits.row(static_cast<int64_t>(i)), found.cols),
          kFloat32Tolerance)
          << "position " << t;
    }
  }

  Fixture fixture_;
};

TEST_P(Mtp, LogitsAlongThePromptAgreeInFloat32) {
  for (int64_t block : {7, 256}) {
    Runner runner(*fixture_.weights, Precision::kFloat32, 1, block);
    std::vector<float> hidden;
    runner.feed(tokens(), &hidden);
    hidden.resize(hidden.size() - static_cast<size_t>(fixture_.hidden()));
    expect_golden(runner.draft(tokens().subspan(1), hidden, 0));
  }
}

// Each draft feeds the head's own hidden and its own token; the trunk's is never fed twice.
TEST_P(Mtp, ChainedDraftsAgreeInFloat32) {
  Runner runner(*fixture_.weights, Precision::kFloat32);
  std::vector<float> hidden;
  const Matrix trunk = runner.feed(tokens(), &hidden);
  std::vector<int32_t> next(fixture_.tokens.begin() + 1, fixture_.tokens.end());
  next.push_back(static_cast<int32_t>(argmax(trunk.row(trunk.rows - 1), trunk.cols)));
  EXPECT_EQ(next.back(), fixture_.draft_tokens[0]);
  const auto prompt = static_cast<int64_t>(fixture_.tokens.size());
  Matrix drafted = runner.draft(next, hidden, 0);
  std::vector<float> own(hidden.end() - fixture_.hidden(), hidden.end());
  for (int64_t i = 0; i < fixture_.draft_logits.rows; ++i) {
    const float* row = drafted.row(drafted.rows - 1);
    EXPECT_LE(row_distance(row, fixture_.draft_logits.row(i), drafted.cols), kFloat32Tolerance)
        << "draft " << i + 1;
    const auto token = static_cast<int32_t>(argmax(row, drafted.cols));
    EXPECT_EQ(token, fixture_.draft_tokens[static_cast<size_t>(i) + 1]);
    drafted = runner.draft(std::span(&token, 1), own, prompt + i);
  }
}

// During prefill only the cache matters: filling it without logits or hidden changes nothing later.
TEST_P(Mtp, FillingTheCacheAloneLeavesTheSameSlots) {
  Runner runner(*fixture_.weights, Precision::kBfloat16);
  std::vector<float> hidden;
  runner.feed(tokens(), &hidden);
  std::vector<float> kept = hidden;
  kept.resize(kept.size() - static_cast<size_t>(fixture_.hidden()));
  const Matrix all = runner.draft(tokens().subspan(1), kept, 0);
  ThreadPool pool(2);
  Workspace workspace(fixture_.weights->config, 256, 512, 2);
  State& state = runner.state();
  mtp_forward(*fixture_.weights, pool, workspace,
              {.next_tokens = tokens().subspan(1, 150),
               .hidden = hidden.data(),
               .state = &state,
               .position = 0,
               .precision = Precision::kBfloat16,
               .logit_rows = 0});
  std::vector<float> tail(hidden.begin() + 150 * fixture_.hidden(),
                          hidden.end() - fixture_.hidden());
  const Matrix rest = runner.draft(tokens().subspan(151), tail, 150);
  EXPECT_EQ(0, std::memcmp(rest.values.data(), all.row(150), rest.values.size() * 4));
}

// After a verification the slots of rejected drafts are overwritten with the trunk's own pairs.
TEST_P(Mtp, OverwrittenSlotsLeaveNoTrace) {
  Runner runner(*fixture_.weights, Precision::kBfloat16);
  std::vector<float> hidden;
  runner.feed(tokens(), &hidden);
  hidden.resize(hidden.size() - static_cast<size_t>(fixture_.hidden()));
  std::vector<float> kept = hidden;
  const Matrix once = runner.draft(tokens().subspan(1), kept, 0);
  std::vector<float> wrong(hidden.begin(), hidden.begin() + 5 * fixture_.hidden());
  runner.draft(tokens().first(5), wrong, 100);
  std::vector<float> tail(hidden.begin() + 100 * fixture_.hidden(), hidden.end());
  const Matrix again = runner.draft(tokens().subspan(101), tail, 100);
  EXPECT_EQ(0, std::memcmp(again.values.data(), once.row(100), again.values.size() * 4));
}

INSTANTIATE_TEST_SUITE_P(Tiny, Mtp, ::testing::Values("tiny-fused", "tiny-fp8"), fixture_label);

TEST(MtpAbsent, PromisedButMissingIsANoteAndNoError) {
  const Fixture fixture = load_fixture("tiny-experts");
  EXPECT_FALSE(has_mtp(*fixture.weights));
  EXPECT_EQ(config_of(*fixture.weights).mtp_layers, 0);
  ASSERT_EQ(notes_of(*fixture.weights).size(), 1u);
  EXPECT_NE(notes_of(*fixture.weights)[0].find("mtp"), std::string::npos);
}

}  // namespace
}  // namespace moray
