// Absurd config.json values: every one is refused by field, with what was found and expected.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/formats/model_config.h"
#include "tests/support/config_texts.h"

namespace moray {
namespace {

using nlohmann::json;

Status refusal(std::string_view text) {
  const auto config = parse_model_config(text, "DIR/config.json");
  return config.ok() ? Status() : config.status();
}

void expect_refused(const std::string& text, StatusCode code, std::string_view expected) {
  const Status status = refusal(text);
  EXPECT_EQ(status.code(), code) << expected << ": " << status.message();
  EXPECT_NE(status.message().find(expected), std::string::npos)
      << "expected: " << expected << "\nfound: " << status.message();
  EXPECT_EQ(status.message().find("DIR/config.json: "), 0u) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
}

// The textual part of a config and its name in messages.
json& text_part(json& config) {
  return config.contains("text_config") ? config["text_config"] : config;
}
std::string prefix(const json& config) {
  return config.contains("text_config") ? "text_config." : "";
}

const std::vector<std::string> kTrunkIntegers = {"vocab_size",          "hidden_size",
                                                 "num_hidden_layers",   "num_attention_heads",
                                                 "num_experts",         "max_position_embeddings",
                                                 "num_experts_per_tok", "moe_intermediate_size"};
const std::vector<std::string> kDeltaIntegers = {
    "linear_num_key_heads",  "linear_num_value_heads", "linear_key_head_dim",
    "linear_value_head_dim", "linear_conv_kernel_dim", "shared_expert_intermediate_size"};

TEST(ModelConfigErrors, B49_EveryDimensionOfEveryFamilyHasItsRange) {
  for (std::string_view text : {kQwen35Config, kQwen3NextConfig, kQwen3MoeConfig, kTinyConfig}) {
    const json original = json::parse(text);
    std::vector<std::string> fields = kTrunkIntegers;
    const bool classic = original["model_type"] == "qwen3_moe";
    if (!classic) fields.insert(fields.end(), kDeltaIntegers.begin(), kDeltaIntegers.end());
    for (const std::string& field : fields) {
      const std::string name = prefix(original) + field;
      for (const json& absurd :
           {json(0), json(-1), json(int64_t{1} << 40), json(INT64_MAX), json(UINT64_MAX),
            json(1e300), json(8.0), json("8"), json(true), json::array({8}), json::object()}) {
        json config = original;
        text_part(config)[field] = absurd;
        expect_refused(config.dump(), StatusCode::kInvalidFile, name + ": found ");
      }
      for (const bool as_null : {false, true}) {
        json config = original;
        text_part(config).erase(field);
        if (as_null) text_part(config)[field] = nullptr;
        expect_refused(config.dump(), StatusCode::kInvalidFile, name + ": found nothing");
      }
    }
  }
}

TEST(ModelConfigErrors, AllAreToldAtOnce) {
  json config = json::parse(kTinyConfig);
  config["hidden_size"] = -5;
  config["num_experts_per_tok"] = 9;
  config["hidden_act"] = "gelu";
  const Status status = refusal(config.dump());
  EXPECT_EQ(status.message(),
            "DIR/config.json: hidden_size: found -5, expected an integer 1..65536; "
            "num_experts_per_tok: found 9, expected at most num_experts, 8; "
            "hidden_act: found 'gelu', expected 'silu'");
}

TEST(ModelConfigErrors, UnknownArchitecturesAreNamedWithTheSupportedOnes) {
  const std::string list = "one of qwen3_5_moe, qwen3_5_moe_text, qwen3_next, qwen3_moe";
  for (const char* other : {"llama", "qwen3_5", "qwen4_exp", "QWEN3_MOE", ""}) {
    json config = json::parse(kTinyConfig);
    config["model_type"] = other;
    expect_refused(config.dump(), StatusCode::kUnsupported,
                   fmt::format("model_type: found '{}', expected {}", other, list));
  }
  expect_refused("{}", StatusCode::kInvalidFile, "model_type: found nothing, expected " + list);
  expect_refused(R"({"architectures": ["LlamaForCausalLM"]})", StatusCode::kUnsupported,
                 "architectures: found 'LlamaForCausalLM', expected one of Qwen3_5MoeFor");
  json config = json::parse(kTinyConfig);
  config["architectures"][0] = "Qwen3NextForCausalLM";
  expect_refused(config.dump(), StatusCode::kUnsupported, "found 'Qwen3NextForCausalLM'");
  config.erase("model_type");
  config["architectures"][0] = "Qwen3_5MoeForCausalLM";
  EXPECT_TRUE(refusal(config.dump()).ok());  // the class alone suffices
}

struct Edit {
  std::string field;
  json value;
  StatusCode code;
  std::string expected;
};

void expect_edits_refused(std::string_view text, const std::vector<Edit>& edits) {
  for (const Edit& edit : edits) {
    json config = json::parse(text);
    config[json::json_pointer(edit.field)] = edit.value;
    expect_refused(config.dump(), edit.code, edit.expected);
  }
}

TEST(ModelConfigErrors, B49_InconsistentDimensions) {
  const StatusCode invalid = StatusCode::kInvalidFile;
  expect_edits_refused(
      kTinyConfig,
      {{"/num_key_value_heads", 3, invalid, "num_key_value_heads: found 3, expected a divisor"},
       {"/linear_num_value_heads", 5, invalid, "linear_num_value_heads: found 5, expected a mul"},
       {"/head_dim", 0, invalid, "head_dim: found 0"},
       {"/layer_types", json::array({"full_attention"}), invalid,
        "layer_types: found 1 entries, expected 2"},
       {"/layer_types", json::array(), invalid, "layer_types: found 0 entries, expected 2"},
       {"/layer_types", "full_attention", invalid, "layer_types: found 'full_attention'"},
       {"/layer_types", json::array({1, 2}), invalid, "layer_types[0]: found 1"},
       {"/layer_types", json::array({"full_attention", "sliding_attention"}),
        StatusCode::kUnsupported, "layer_types[1]: found 'sliding_attention'"},
       {"/full_attention_interval", 0, invalid, "full_attention_interval: found 0"},
       {"/rms_norm_eps", 0, invalid, "rms_norm_eps: found 0"},
       {"/rms_norm_eps", -1e-6, invalid, "rms_norm_eps: found -1e-06"},
       {"/eos_token_id", 256, invalid, "eos_token_id: found 256, expected an integer 0..255"},
       {"/eos_token_id", json::array({1, -1}), invalid, "eos_token_id[1]: found -1"},
       {"/tie_word_embeddings", 1, invalid, "tie_word_embeddings: found 1"},
       {"/text_config", json::array(), invalid, "text_config: found an array"}});
  expect_edits_refused(kQwen3MoeConfig, {{"/layer_types", json::array({"linear_attention"}),
                                          invalid, "layer_types: found 1 entries, expected 48"}});
}

TEST(ModelConfigErrors, RotaryFields) {
  const StatusCode invalid = StatusCode::kInvalidFile;
  expect_edits_refused(
      kTinyConfig,
      {{"/rope_parameters/rope_theta", 0, invalid, "rope_parameters.rope_theta: found 0"},
       {"/rope_parameters/rope_theta", "big", invalid, "rope_parameters.rope_theta: found 'big'"},
       {"/rope_parameters/partial_rotary_factor", 0, invalid, "partial_rotary_factor: found 0"},
       {"/rope_parameters/partial_rotary_factor", 1.5, invalid, "partial_rotary_factor: found 1.5"},
       {"/rope_parameters/partial_rotary_factor", 0.1, invalid, "an even number of at least 2"},
       {"/rope_parameters", 3, invalid, "rope_parameters: found 3"},
       {"/rope_parameters", nullptr, invalid, "rope_theta: found nothing"},
       {"/rope_parameters/rope_type", "llama3", StatusCode::kUnsupported, "found 'llama3'"},
       {"/rope_parameters/rope_type", "yarn", invalid, "rope_parameters.factor: found nothing"}});
  json yarn = json::parse(kTinyConfig);
  yarn["rope_parameters"]["rope_type"] = "yarn";
  yarn["rope_parameters"]["factor"] = 4;
  yarn["rope_parameters"]["mscale"] = 1;
  expect_refused(yarn.dump(), StatusCode::kUnsupported, "rope_parameters.mscale: found 1");
}

TEST(ModelConfigErrors, FeaturesNoModelUses) {
  const StatusCode unsupported = StatusCode::kUnsupported;
  expect_edits_refused(
      kTinyConfig,
      {{"/attention_bias", true, unsupported, "attention_bias: found true, expected false"},
       {"/use_sliding_window", true, unsupported, "use_sliding_window: found true"},
       {"/mtp_use_dedicated_embeddings", true, unsupported, "mtp_use_dedicated_embeddings: found"},
       {"/decoder_sparse_step", 2, unsupported, "decoder_sparse_step: found 2, expected 1"},
       {"/mlp_only_layers", json::array({0}), unsupported, "mlp_only_layers: found an array"},
       {"/dtype", "int4", unsupported, "dtype: found 'int4'"},
       {"/mtp_num_hidden_layers", 2, StatusCode::kInvalidFile, "mtp_num_hidden_layers: found 2"}});
}

TEST(ModelConfigErrors, QuantisationSchemes) {
  const StatusCode unsupported = StatusCode::kUnsupported;
  const std::string at = "/quantization_config/";
  expect_edits_refused(
      kTinyConfig,
      {{at + "quant_method", "modelopt", unsupported,
        "quantization_config.quant_method: found 'modelopt', expected 'fp8'"},
       {at + "quant_method", nullptr, StatusCode::kInvalidFile, "quant_method: found nothing"},
       {at + "fmt", "e5m2", unsupported, "fmt: found 'e5m2'"},
       {at + "activation_scheme", "static", unsupported, "activation_scheme: found 'static'"},
       {at + "weight_block_size", json::array({64, 64}), unsupported, "found [64, 64]"},
       {at + "weight_block_size", nullptr, unsupported, "weight_block_size: found []"},
       {at + "scale_fmt", "ue8m0", unsupported, "scale_fmt: found 'ue8m0'"},
       {at + "modules_to_not_convert", 1, StatusCode::kInvalidFile, "found 1, expected a list"}});
}

TEST(ModelConfigErrors, TextsThatAreNotAConfig) {
  const StatusCode invalid = StatusCode::kInvalidFile;
  expect_refused("", invalid, "no valid JSON");
  expect_refused("hello", invalid, "no valid JSON");
  expect_refused("[1]", invalid, "found an array, expected a JSON object");
  expect_refused("{\"a\":\"\xff\"}", invalid, "no valid JSON");
  expect_refused("{\"a\":" + std::string(100'000, '['), invalid, "no valid JSON");
  expect_refused(std::string(1000, '\0'), invalid, "no valid JSON");
  expect_refused(replaced(kTinyConfig, "\"num_experts\": 8", "\"num_experts\": NaN"), invalid,
                 "no valid JSON");
  expect_refused(
      replaced(kTinyConfig, "\"num_experts\": 8", "\"num_experts\": 8, \"num_experts\": 9"),
      invalid, "'num_experts': found twice, expected once");
}

TEST(GenerationConfig, ReadsListsAndSingleStops) {
  const auto both = parse_generation_config(
      R"({"eos_token_id": [248046, 248044], "do_sample": true, "temperature": 0.7, "top_k": 20,
          "top_p": 0.8, "repetition_penalty": 1.05, "transformers_version": "4.57.0"})",
      "x");
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ(both->eos_token_ids, (std::vector<int32_t>{248046, 248044}));
  EXPECT_EQ(both->temperature, 0.7);
  EXPECT_EQ(both->top_k, 20);
  EXPECT_EQ(both->do_sample, true);
  EXPECT_FALSE(both->min_p);
  const auto single = parse_generation_config(R"({"eos_token_id": 3})", "x");
  ASSERT_TRUE(single.ok());
  EXPECT_EQ(single->eos_token_ids, std::vector<int32_t>{3});
  EXPECT_TRUE(parse_generation_config("{}", "x")->eos_token_ids.empty());
}

TEST(GenerationConfig, RefusesAbsurdValuesByName) {
  const auto config = parse_generation_config(
      R"({"eos_token_id": -1, "temperature": -0.1, "top_p": 2, "min_p": "a", "top_k": 1.5,
          "repetition_penalty": 0, "do_sample": "yes"})",
      "x");
  ASSERT_FALSE(config.ok());
  for (const char* field :
       {"eos_token_id: found -1", "temperature: found -0.1", "top_p: found 2", "min_p: found 'a'",
        "top_k: found 1.5", "repetition_penalty: found 0", "do_sample: found 'yes'"}) {
    EXPECT_NE(config.status().message().find(field), std::string::npos) << field;
  }
}

}  // namespace
}  // namespace moray
