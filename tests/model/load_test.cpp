// Checkpoints that are wrong, and configs that lie: one report with every tensor by its name, never
// a crash; and the layouts that must load although they differ.
#include <fstream>
#include <functional>
#include <sstream>

#include "fixture.h"
#include "tests/support/config_texts.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace moray {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A fixture's files in memory, to be changed and written elsewhere.
struct Folder {
  std::string config;
  TestTensors tensors;

  explicit Folder(const std::string& name)
      : config(read_text(data_folder() + name + "/config.json")) {
    auto file = SafetensorsFile::open(data_folder() + name + "/model.safetensors");
    CHECK(file.ok(), file.status().message());
    for (const auto& [tensor, entry] : file->header().tensors) {
      const std::span<const std::byte> bytes = file->bytes(entry);
      tensors[tensor] = {entry.dtype, entry.shape,
                         std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
    }
  }

  void replace_in_config(const std::string& from, const std::string& to) {
    config = replaced(config, from, to);
  }

  Result<std::shared_ptr<const Weights>> load(const LoadOptions& options = {}) const {
    const TempFolder folder;
    folder.write("config.json", config);
    folder.write("model.safetensors", safetensors_content(tensors));
    auto checkpoint = Checkpoint::open(folder.path());
    if (!checkpoint.ok()) return checkpoint.status();
    return load_weights(*checkpoint, options);
  }

  // The report of a load that must fail; each of `names` must be in it.
  void expect_report(const std::vector<std::string>& names,
                     StatusCode code = StatusCode::kInvalidFile) const {
    const auto loaded = load();
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.status().code(), code) << loaded.status().message();
    for (const std::string& name : names) {
      EXPECT_NE(loaded.status().message().find(name), std::string::npos)
          << name << " is not in: " << loaded.status().message();
    }
  }
};

const std::string kLayer = "model.language_model.layers.0.";

TEST(Load, AnUnchangedCopyLoads) {
  for (const char* name : {"tiny-fused", "tiny-experts", "tiny-fp8"}) {
    const auto loaded = Folder(name).load();
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  }
}

TEST(Load, EveryMissingTensorIsNamedInOneReport) {
  Folder folder("tiny-fp8");
  const std::vector<std::string> names = {
      kLayer + "linear_attn.A_log", kLayer + "mlp.experts.3.up_proj.weight",
      "model.language_model.norm.weight", "mtp.layers.0.self_attn.q_norm.weight",
      kLayer + "linear_attn.in_proj_z.weight_scale_inv"};
  for (const std::string& name : names) ASSERT_EQ(folder.tensors.erase(name), 1u) << name;
  folder.expect_report(names);
}

TEST(Load, AnySingleMissingTensorIsNamed) {
  for (const char* fixture : {"tiny-fused", "tiny-experts", "tiny-fp8"}) {
    const Folder whole(fixture);
    for (const auto& [name, tensor] : whole.tensors) {
      if (name.starts_with("model.visual.")) continue;
      Folder folder = whole;
      folder.tensors.erase(name);
      folder.expect_report({name});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Load, WrongShapeAndWrongDtypeAreNamedWithBothSides) {
  Folder folder("tiny-fused");
  folder.tensors[kLayer + "mlp.gate.weight"] = zero_tensor(DType::kBF16, {7, 64});
  folder.tensors[kLayer + "mlp.experts.down_proj"] = zero_tensor(DType::kBF16, {6, 24, 64});
  folder.tensors[kLayer + "input_layernorm.weight"] = zero_tensor(DType::kBF16, {64, 1});
  folder.tensors[kLayer + "linear_attn.dt_bias"] = zero_tensor(DType::kI32, {4});
  folder.tensors["lm_head.weight"] = zero_tensor(DType::kF8E4M3, {128, 64});
  folder.expect_report({kLayer + "mlp.gate.weight", "[7, 64]", "[6, 64]",
                        kLayer + "mlp.experts.down_proj", "[6, 24, 64]", "[6, 64, 24]",
                        kLayer + "input_layernorm.weight", kLayer + "linear_attn.dt_bias", "I32",
                        "lm_head.weight", "F8_E4M3"});
}

TEST(Load, ScalesOfAnotherShapeOrWithNaNAreNamed) {
  Folder folder("tiny-fp8");
  const std::string shaped = kLayer + "linear_attn.in_proj_qkv.weight_scale_inv";
  const std::string nan = kLayer + "linear_attn.out_proj.weight_scale_inv";
  const std::string codes = kLayer + "mlp.shared_expert.up_proj.weight_scale_inv";
  folder.tensors[shaped] = zero_tensor(DType::kBF16, {1, 2});
  std::memcpy(folder.tensors[nan].bytes.data(), "\xc0\x7f", 2);
  folder.tensors[codes] = zero_tensor(DType::kI64, folder.tensors[codes].shape);
  folder.expect_report({shaped, nan, codes});
}

TEST(Load, AConfigThatLiesIsFoundOutByTheTensors) {
  struct Lie {
    const char* from;
    const char* to;
    std::vector<std::string> named;
  };
  const std::vector<Lie> lies = {
      {R"("num_attention_heads": 4)", R"("num_attention_heads": 8)", {"layers.3.self_attn.q_proj"}},
      {R"("num_key_value_heads": 2)", R"("num_key_value_heads": 4)", {"layers.3.self_attn.k_proj"}},
      {R"("head_dim": 32)", R"("head_dim": 64)", {"q_norm", "layers.3.self_attn.o_proj"}},
      {R"("linear_num_value_heads": 4)",
       R"("linear_num_value_heads": 8)",
       {"in_proj_qkv", "A_log", "in_proj_b"}},
      {R"("vocab_size": 128)", R"("vocab_size": 100)", {"embed_tokens", "lm_head", "100"}},
      {R"("vocab_size": 128)", R"("vocab_size": 256)", {"embed_tokens", "lm_head", "256"}},
      {R"("num_experts": 4)", R"("num_experts": 3)", {"experts.3.", "mlp.gate.weight"}},
      {R"("num_experts": 4)", R"("num_experts": 6)", {"experts.5.", "mlp.gate.weight"}},
      {R"("moe_intermediate_size": 40)", R"("moe_intermediate_size": 48)", {"experts.0.up_proj"}},
      {R"("shared_expert_intermediate_size": 24)",
       R"("shared_expert_intermediate_size": 16)",
       {"shared_expert.up_proj", "shared_expert.down_proj"}},
      {R"("linear_conv_kernel_dim": 4)", R"("linear_conv_kernel_dim": 3)", {"conv1d"}},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.to);
    Folder folder("tiny-fp8");
    folder.replace_in_config(lie.from, lie.to);
    folder.expect_report(lie.named);
  }
}

// Fewer layers, or layers of the other kind, would run and answer nonsense.
TEST(Load, LayersTheConfigForgetsAreNamed) {
  Folder fewer("tiny-experts");
  fewer.replace_in_config("\"num_hidden_layers\": 5", "\"num_hidden_layers\": 4");
  fewer.replace_in_config(",\n  \"full_attention\"\n ]", "\n ]");
  fewer.expect_report({"model.layers.4."});
  Folder other("tiny-experts");
  other.replace_in_config("\"linear_attention\",\n  \"full_attention\"",
                          "\"full_attention\",\n  \"linear_attention\"");
  other.expect_report({"model.layers.0.self_attn.q_proj.weight", "model.layers.1.linear_attn."});
}

TEST(Load, PartOfAnMtpHeadIsAnErrorAndNoneIsANote) {
  Folder part("tiny-fused");
  ASSERT_EQ(part.tensors.erase("mtp.fc.weight"), 1u);
  part.expect_report({"mtp.fc.weight"});
  Folder none("tiny-fused");
  std::erase_if(none.tensors, [](const auto& item) { return item.first.starts_with("mtp."); });
  auto loaded = none.load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_FALSE(has_mtp(**loaded));
  EXPECT_EQ(notes_of(**loaded).size(), 1u);
  Folder silent("tiny-fused");
  silent.replace_in_config("\"mtp_num_hidden_layers\": 1", "\"mtp_num_hidden_layers\": 0");
  loaded = silent.load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_FALSE(has_mtp(**loaded));
  EXPECT_EQ(notes_of(**loaded).size(), 1u);
}

TEST(Load, TiedEmbeddingsServeAsHead) {
  Folder folder("tiny-experts");
  folder.tensors["lm_head.weight"] = folder.tensors["model.embed_tokens.weight"];
  const auto untied = folder.load();
  ASSERT_TRUE(untied.ok()) << untied.status().message();
  folder.replace_in_config("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  for (const bool stored_twice : {true, false}) {
    if (!stored_twice) folder.tensors.erase("lm_head.weight");
    const auto tied = folder.load();
    ASSERT_TRUE(tied.ok()) << tied.status().message();
    Runner expected(**untied, Precision::kFloat32);
    Runner found(**tied, Precision::kFloat32);
    const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6};
    EXPECT_EQ(found.feed(tokens).values, expected.feed(tokens).values);
  }
}

// The same numbers, one expert a tensor, under the plain prefix: the fused model's own logits.
TEST(Load, ExpertLayoutsAndPrefixesAreInterchangeable) {
  const Folder fused("tiny-fused");
  Folder split = fused;
  split.tensors.clear();
  const std::string wrapper = "model.language_model.";
  for (const auto& [stored, tensor] : fused.tensors) {
    std::string name = stored;
    if (name.starts_with("model.visual.")) continue;
    if (name.starts_with(wrapper)) name = "model." + name.substr(wrapper.size());
    const size_t stem = name.find("experts.");
    const bool gate_up = name.ends_with("experts.gate_up_proj");
    if (!gate_up && !name.ends_with("experts.down_proj")) {
      split.tensors[name] = tensor;
      continue;
    }
    const int64_t experts = tensor.shape[0];
    const int64_t parts = gate_up ? 2 : 1;
    const size_t bytes = tensor.bytes.size() / static_cast<size_t>(experts * parts);
    for (int64_t i = 0; i < experts * parts; ++i) {
      const char* part = !gate_up ? "down_proj" : i % 2 == 0 ? "gate_proj" : "up_proj";
      split.tensors[fmt::format("{}experts.{}.{}.weight", name.substr(0, stem), i / parts, part)] =
          {tensor.dtype,
           {tensor.shape[1] / parts, tensor.shape[2]},
           tensor.bytes.substr(static_cast<size_t>(i) * bytes, bytes)};
    }
  }
  const auto loaded = split.load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Fixture fixture = load_fixture("tiny-fused");
  Runner expected(*fixture.weights, Precision::kBfloat16);
  Runner found(**loaded, Precision::kBfloat16);
  EXPECT_EQ(found.feed(fixture.tokens).values, expected.feed(fixture.tokens).values);
}

TEST(Load, OtherFamiliesAreRefusedByName) {
  Folder folder("tiny-experts");
  folder.config = kQwen3NextConfig;
  folder.expect_report({"qwen3_next", "qwen3_5_moe or qwen3_moe"}, StatusCode::kUnsupported);
}

TEST(Load, ProgressReachesTheEndAndCanCancel) {
  const Folder folder("tiny-fp8");
  int64_t last = -1;
  int64_t total = 0;
  const auto loaded = folder.load({.progress = [&](int64_t done, int64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
    return true;
  }});
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(last, total);
  EXPECT_GT(total, 700000);
  const auto cancelled = folder.load({.progress = [](int64_t, int64_t) { return false; }});
  ASSERT_FALSE(cancelled.ok());
  EXPECT_EQ(cancelled.status().code(), StatusCode::kCancelled);
}

// Copied or mapped, the numbers are the same.
TEST(Load, AMappedModelComputesTheSame) {
  for (const char* name : {"tiny-fused", "tiny-fp8"}) {
    auto checkpoint = Checkpoint::open(data_folder() + name);
    ASSERT_TRUE(checkpoint.ok());
    const auto mapped = load_weights(*checkpoint, {.copy_bytes_max = 0});
    ASSERT_TRUE(mapped.ok());
    const Fixture fixture = load_fixture(name);
    ASSERT_NE(fixture.weights->arena, nullptr);
    ASSERT_EQ((*mapped)->arena, nullptr);
    Runner expected(*fixture.weights, Precision::kBfloat16);
    Runner found(**mapped, Precision::kBfloat16);
    EXPECT_EQ(found.feed(fixture.tokens).values, expected.feed(fixture.tokens).values);
  }
}

// By hand for tiny-fp8: bytes of one row of the embedding, the head, and per layer the FP8 and BF16
// matrices with their FP32 scales and widened vectors, two of four experts.
TEST(Load, DecodeBytesCountWhatATokenReads) {
  const Fixture fixture = load_fixture("tiny-fp8");
  const int64_t vectors_of_layer = 4 * 2 * 144;
  const auto fp8 = [](int64_t rows, int64_t cols) {
    return rows * cols + (rows + 127) / 128 * ((cols + 127) / 128) * 4;
  };
  const int64_t experts = 2 * (2 * fp8(40, 144) + fp8(144, 40)) + 2 * fp8(24, 144) + fp8(144, 24) +
                          2 * 4 * 144 + 2 * 144;
  const int64_t delta =
      fp8(256, 144) + fp8(128, 144) + fp8(144, 128) + 2 * 2 * 4 * 144 + 4 * (256 * 4 + 4 + 4 + 32);
  const int64_t full = fp8(256, 144) + 2 * fp8(64, 144) + fp8(144, 128) + 4 * 2 * 32;
  EXPECT_EQ(
      decode_weight_bytes(*fixture.weights),
      2 * 144 + 2 * 128 * 144 + 4 * 144 + 4 * (vectors_of_layer + experts) + 3 * delta + full);
  EXPECT_EQ(decode_state_bytes(*fixture.weights, 1000, KvFormat::kBf16) -
                decode_state_bytes(*fixture.weights, 0, KvFormat::kBf16),
            1000 * 2 * 2 * 32 * 2);
}

}  // namespace
}  // namespace moray
