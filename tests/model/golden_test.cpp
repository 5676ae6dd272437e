// Logits against Hugging Face transformers on the same weights, in FP32 and in default precision.
#include "fixture.h"

namespace moray {
namespace {

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { fixture_ = load_fixture(GetParam()); }
  std::span<const int32_t> tokens() const { return fixture_.tokens; }
  Fixture fixture_;
};

TEST_P(Golden, PrefillOfEveryLengthAgreesInFloat32) {
  for (size_t count : {1, 63, 64, 65, 130, 200}) {
    Runner runner(*fixture_.weights, Precision::kFloat32);
    EXPECT_TRUE(close_to(runner.feed(tokens().first(count)), fixture_.logits)) << count;
  }
}

TEST_P(Golden, DecodingAfterAPrefillAgreesInFloat32) {
  for (size_t count : {2, 64, 65, 66, 129, 200}) {
    Runner runner(*fixture_.weights, Precision::kFloat32);
    runner.feed(tokens().first(count - 1));
    const Matrix last = runner.feed(tokens().subspan(count - 1, 1));
    EXPECT_TRUE(close_to(last, fixture_.logits, static_cast<int64_t>(count) - 1)) << count;
  }
}

TEST_P(Golden, TokenByTokenAgreesInFloat32) {
  Runner runner(*fixture_.weights, Precision::kFloat32);
  for (size_t t = 0; t < fixture_.tokens.size(); ++t) {
    ASSERT_TRUE(
        close_to(runner.feed(tokens().subspan(t, 1)), fixture_.logits, static_cast<int64_t>(t)));
  }
}

TEST_P(Golden, SplitPrefillAgreesInFloat32) {
  for (size_t border : {1, 3, 62, 63, 64, 65, 127, 128, 129, 199}) {
    Runner runner(*fixture_.weights, Precision::kFloat32);
    EXPECT_TRUE(close_to(runner.feed(tokens().first(border)), fixture_.logits)) << border;
    EXPECT_TRUE(close_to(runner.feed(tokens().subspan(border)), fixture_.logits,
                         static_cast<int64_t>(border)))
        << border;
  }
}

// What 16-bit activations cost on these random models (KL some 1e-3 by rounding alone, up to a few
// tenths where a close router decision turns) is known from transformers' own BF16 run, which the
// goldens hold. Ours keeps more in FP32 and may cost no more than that; a quarter is allowed on
// top, because decisions turn at other positions. The faults of mutation_test.cpp cost 1e-1 and
// more.
TEST_P(Golden, DefaultPrecisionCostsNoMoreThanTransformersOwn) {
  Runner runner(*fixture_.weights, Precision::kBfloat16);
  const Matrix found = runner.feed(tokens());
  double kl = 0;
  int64_t same_top = 0;
  for (int64_t t = 0; t < found.rows; ++t) {
    kl += kl_divergence(fixture_.logits.row(t), found.row(t), found.cols);
    same_top += argmax(found.row(t), found.cols) == argmax(fixture_.logits.row(t), found.cols);
  }
  double theirs = 0;
  for (float value : fixture_.bfloat16_kl) theirs += value;
  const auto rows = static_cast<double>(found.rows);
  RecordProperty("kl", std::to_string(kl / rows));
  RecordProperty("kl_transformers", std::to_string(theirs / rows));
  RecordProperty("top1", std::to_string(static_cast<double>(same_top) / rows));
  ASSERT_EQ(static_cast<int64_t>(fixture_.bfloat16_kl.size()), found.rows);
  EXPECT_LE(kl, 1.25 * theirs);
  EXPECT_GE(static_cast<double>(same_top) / rows, 0.93);
}

// Each instruction level has its own inner loops; all of them must agree, and with themselves to
// the bit however the prompt is cut.
TEST_P(Golden, EveryInstructionLevelOfThisMachineAgrees) {
  for (cpu::Level level : {cpu::Level::kAvx2, cpu::Level::kAvx512}) {
    const auto kernels = cpu::kernels_for(level);
    if (!kernels.ok()) continue;  // best_kernels() is one of the two, so that one always runs
    SCOPED_TRACE(std::string(cpu::level_name(level)));
    for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
      Runner whole(*fixture_.weights, precision, **kernels);
      Runner cut(*fixture_.weights, precision, **kernels, 2, 7);
      const Matrix found = whole.feed(tokens());
      EXPECT_EQ(cut.feed(tokens()).values, found.values);
      if (precision == Precision::kFloat32) {
        EXPECT_TRUE(close_to(found, fixture_.logits));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, Golden, ::testing::ValuesIn(kFixtures), fixture_label);

}  // namespace
}  // namespace moray
