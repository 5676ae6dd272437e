// config.json of all three families becomes one ModelConfig; every absurd value is named.
#include "src/formats/model_config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/config_texts.h"

namespace moray {
namespace {

ModelConfig parsed(std::string_view text) {
  auto config = parse_model_config(text, "config.json");
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : ModelConfig();
}

TEST(ModelConfig, Qwen35NestedTextConfig) {
  const ModelConfig config = parsed(kQwen35Config);
  EXPECT_EQ(config.family, Family::kQwen3_5Moe);
  EXPECT_EQ(config.model_type, "qwen3_5_moe");
  EXPECT_EQ(config.vocab_rows, 248320);
  EXPECT_EQ(config.num_layers, 40);
  EXPECT_EQ(config.count_layers(LayerKind::kGatedDelta), 30);
  EXPECT_EQ(config.count_layers(LayerKind::kFullAttention), 10);
  EXPECT_EQ(config.layer_kinds[3], LayerKind::kFullAttention);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.rope_theta, 1e7);
  EXPECT_EQ(config.gdn_conv_channels(), 8192);
  EXPECT_EQ(config.mtp_layers, 1);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{248044});
  EXPECT_TRUE(config.zero_centred_norms);
  EXPECT_TRUE(config.attention_output_gate);
  EXPECT_TRUE(config.normalise_top_k);
  EXPECT_FALSE(config.block_fp8);
  EXPECT_FALSE(config.yarn);
}

// tests/configs: the files that GPU kernels are compiled for.
TEST(ModelConfig, ShippedConfigsOfPublicModelsParse) {
  struct Shape {
    const char* folder;
    Family family;
    int64_t layers, experts, top_k, expert_dim, shared_dim, vocab_rows;
  };
  const Shape shapes[] = {
      {"qwen3.6-35b-a3b", Family::kQwen3_5Moe, 40, 256, 8, 512, 512, 248320},
      {"qwen3-coder-next-80b", Family::kQwen3Next, 48, 512, 10, 512, 512, 151936},
      {"qwen3-coder-30b-a3b", Family::kQwen3Moe, 48, 128, 8, 768, 0, 151936},
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.folder);
    std::ifstream file(std::string(MORAY_SOURCE_DIR "/tests/configs/") + shape.folder +
                       "/config.json");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const ModelConfig config = parsed(text);
    EXPECT_EQ(config.family, shape.family);
    EXPECT_EQ(config.num_layers, shape.layers);
    EXPECT_EQ(config.num_experts, shape.experts);
    EXPECT_EQ(config.top_k, shape.top_k);
    EXPECT_EQ(config.expert_dim, shape.expert_dim);
    EXPECT_EQ(config.shared_expert_dim, shape.shared_dim);
    EXPECT_EQ(config.vocab_rows, shape.vocab_rows);
    EXPECT_EQ(config.hidden, 2048);
    EXPECT_TRUE(config.block_fp8);
    EXPECT_FALSE(config.not_converted.empty());
  }
}

TEST(ModelConfig, Qwen3NextFlatWithoutLayerList) {
  const ModelConfig config = parsed(kQwen3NextConfig);
  EXPECT_EQ(config.family, Family::kQwen3Next);
  EXPECT_EQ(config.count_layers(LayerKind::kGatedDelta), 36);
  EXPECT_EQ(config.layer_kinds[47], LayerKind::kFullAttention);
  EXPECT_EQ(config.rope_theta, 5e6);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.mtp_layers, 1);
  EXPECT_EQ(config.top_k, 10);
}

TEST(ModelConfig, Qwen3MoeClassicAttention) {
  const ModelConfig config = parsed(kQwen3MoeConfig);
  EXPECT_EQ(config.family, Family::kQwen3Moe);
  EXPECT_EQ(config.count_layers(LayerKind::kFullAttention), 48);
  EXPECT_EQ(config.rotary_dim, 128);
  EXPECT_EQ(config.shared_expert_dim, 0);
  EXPECT_EQ(config.mtp_layers, 0);
  EXPECT_EQ(config.gdn_key_heads, 0);
  EXPECT_FALSE(config.zero_centred_norms);
  EXPECT_FALSE(config.attention_output_gate);
}

TEST(ModelConfig, Qwen3MoeAsTransformers5WritesIt) {
  const ModelConfig config = parsed(
      replaced(replaced(kQwen3MoeConfig, "\"num_experts\"", "\"num_local_experts\""),
               "\"rope_scaling\": null, \"rope_theta\": 10000000",
               "\"rope_parameters\": {\"rope_theta\": 10000000.0, \"rope_type\": \"default\"}"));
  EXPECT_EQ(config.num_experts, 128);
  EXPECT_EQ(config.rope_theta, 1e7);
}

TEST(ModelConfig, BlockFp8AndFlatTextModel) {
  const ModelConfig config = parsed(kTinyConfig);
  EXPECT_TRUE(config.block_fp8);
  EXPECT_EQ(config.not_converted.size(), 2u);
  EXPECT_EQ(config.layer_kinds, (std::vector{LayerKind::kGatedDelta, LayerKind::kFullAttention}));
  EXPECT_EQ(config.rotary_dim, 8);
}

TEST(ModelConfig, LegacyLayerNamesAreRemapped) {
  const ModelConfig config = parsed(replaced(kTinyConfig, "\"full_attention_interval\": 2",
                                             "\"layer_types\": [\"attention\", \"mamba\"]"));
  EXPECT_EQ(config.layer_kinds, (std::vector{LayerKind::kFullAttention, LayerKind::kGatedDelta}));
}

TEST(ModelConfig, YarnInEitherSpelling) {
  for (std::string_view name : {"type", "rope_type"}) {
    const std::string scaling = "\"rope_scaling\": {\"" + std::string(name) +
                                "\": \"yarn\", \"factor\": 4.0, "
                                "\"original_max_position_embeddings\": 262144}";
    const ModelConfig config =
        parsed(replaced(kQwen3NextConfig, "\"rope_scaling\": null", scaling));
    ASSERT_TRUE(config.yarn);
    EXPECT_EQ(config.yarn->factor, 4);
    EXPECT_EQ(config.yarn->original_max_positions, 262144);
  }
  // Added beside rope_parameters, as older instructions say: it must not be ignored.
  const ModelConfig added =
      parsed(replaced(kQwen35Config, "\"vocab_size\"",
                      "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2}, \"vocab_size\""));
  ASSERT_TRUE(added.yarn);
  EXPECT_EQ(added.yarn->factor, 2);
  EXPECT_EQ(added.rope_theta, 1e7);
  EXPECT_EQ(added.rotary_dim, 64);

  const ModelConfig config = parsed(replaced(kQwen35Config, "\"rope_type\": \"default\"",
                                             "\"rope_type\": \"yarn\", \"factor\": 2.5"));
  ASSERT_TRUE(config.yarn);
  EXPECT_EQ(config.yarn->original_max_positions, 262144);
}

}  // namespace
}  // namespace moray
