// Parameter counts against transformers 5.17: sum of the parameters of the model class built on the
// meta device from the same three configurations, and the same sum with top-k experts, no
// embedding.
#include "src/formats/parameters.h"

#include <gtest/gtest.h>

#include "tests/support/config_texts.h"

namespace moray {
namespace {

ParameterCounts counts_of(std::string_view text) {
  const auto config = parse_model_config(text, "config.json");
  EXPECT_TRUE(config.ok()) << config.status().message();
  return count_parameters(*config);
}

TEST(Parameters, Qwen35Has34_66BillionAnd2_946Active) {
  const ParameterCounts counts = counts_of(kQwen35Config);
  EXPECT_EQ(counts.total(), 34'660'610'688);
  EXPECT_EQ(counts.active(), 2'946'429'568);
  EXPECT_EQ(counts.attention, 272'634'880);
  EXPECT_EQ(counts.delta_net, 1'011'553'920);
  EXPECT_EQ(counts.routed_experts, 32'212'254'720);
  EXPECT_EQ(counts.shared_expert, 125'911'040);
  EXPECT_EQ(counts.router, 20'971'520);
  EXPECT_EQ(counts.norms, 165'888);
  EXPECT_EQ(counts.head, 508'559'360);
}

TEST(Parameters, Qwen3NextAndQwen3Moe) {
  EXPECT_EQ(counts_of(kQwen3NextConfig).total(), 79'674'391'296);
  EXPECT_EQ(counts_of(kQwen3NextConfig).active(), 3'563'764'480);
  EXPECT_EQ(counts_of(kQwen3MoeConfig).total(), 30'532'122'624);
  EXPECT_EQ(counts_of(kQwen3MoeConfig).active(), 3'041'867'776);
  EXPECT_EQ(counts_of(kTinyConfig).total(), 195'096);
  EXPECT_EQ(counts_of(kTinyConfig).active(), 104'984);
}

TEST(Parameters, TiedHeadIsActiveButCountedOnce) {
  const ParameterCounts tied = counts_of(
      replaced(kTinyConfig, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"));
  EXPECT_EQ(tied.total(), 195'096 - 256 * 64);
  EXPECT_EQ(tied.active(), 104'984);
}

// One attention layer with experts and its two norms, three more norms, and fc of [H, 2H].
TEST(Parameters, MtpIsOneLayerAndItsInput) {
  EXPECT_EQ(counts_of(kQwen35Config).mtp, 272'634'880 / 10 + 32'212'254'720 / 40 +
                                              125'911'040 / 40 + 20'971'520 / 40 + 5 * 2048 +
                                              2 * 2048 * 2048);
  EXPECT_EQ(counts_of(kQwen3MoeConfig).mtp, 0);
}

}  // namespace
}  // namespace moray
