// resolve_model, list_models, model_info and the licence of a card.
#include "moray/tools.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "src/formats/model_card.h"
#include "tests/support/config_texts.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace moray {
namespace {

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";

struct Places {
  TempFolder folder;
  ModelPlaces places{{folder / "models"}, {folder / "hub"}};

  Places() {
    folder.write("models/nano/config.json", "{}");
    folder.write("models/notes/README.md", "no model");
    folder.write("models/readme.txt", "a file");
    folder.write("hub/models--Qwen--Coder-Next/refs/main", kCommit + "\n");
    folder.write("hub/models--Qwen--Coder-Next/snapshots/" + kCommit + "/config.json", "{}");
    folder.write("hub/models--Qwen--Partial/refs/main", kCommit);
    folder.write("hub/models--Evil--Ref/refs/main", "../../../models/nano");
    folder.write("hub/models--Evil--Dots/refs/main", "..");
    folder.write("hub/models--Evil--Dots/config.json", "{}");
    folder.write("hub/datasets--Qwen--Data/refs/main", kCommit);
  }
};

TEST(ResolveModel, FolderNameAndHubId) {
  const Places at;
  const std::string nano = at.folder / "models/nano";
  const std::string snapshot = at.folder / ("hub/models--Qwen--Coder-Next/snapshots/" + kCommit);
  EXPECT_EQ(*resolve_model(nano, at.places), nano);
  EXPECT_EQ(*resolve_model(nano + "//", at.places), nano);
  EXPECT_EQ(*resolve_model("nano", at.places), nano);
  EXPECT_EQ(*resolve_model("Qwen/Coder-Next", at.places), snapshot);
  EXPECT_EQ(*resolve_model("Qwen/Coder-Next@main", at.places), snapshot);
  EXPECT_EQ(*resolve_model("Qwen/Coder-Next@" + kCommit, at.places), snapshot);
}

TEST(ResolveModel, WhatIsNotThereIsSaidWithThePlaces) {
  const Places at;
  for (const char* name : {"none", "Qwen/None", "Qwen/Partial", "Qwen/Coder-Next@v2", "a/b/c",
                           "../models", "..", "Qwen/../x", "\x1b[2J"}) {
    const auto found = resolve_model(name, at.places);
    ASSERT_FALSE(found.ok()) << name;
    const std::string& message = found.status().message();
    EXPECT_EQ(message.find('\x1b'), std::string::npos);
    if (found.status().code() != StatusCode::kNotFound) continue;  // ".." is a folder
    EXPECT_NE(message.find(at.folder / "models"), std::string::npos) << message;
    EXPECT_NE(message.find(at.folder / "hub"), std::string::npos) << message;
  }
  EXPECT_EQ(resolve_model("", at.places).status().code(), StatusCode::kInvalidArgument);
}

TEST(ResolveModel, WhatIsNoModelIsSaidSo) {
  const Places at;
  const auto notes = resolve_model(at.folder / "models/notes", at.places);
  EXPECT_NE(notes.status().message().find("found no config.json"), std::string::npos);
  const auto file = resolve_model(at.folder / "models/readme.txt", at.places);
  EXPECT_NE(file.status().message().find("found a file, expected a model folder"),
            std::string::npos);
  const auto evil = resolve_model("Evil/Ref", at.places);
  ASSERT_FALSE(evil.ok());
  EXPECT_NE(evil.status().message().find("refs/main: found '../../../models/nano'"),
            std::string::npos);
  EXPECT_FALSE(resolve_model("Evil/Dots", at.places).ok());
}

TEST(ListModels, OnlyWhatResolves) {
  const Places at;
  const auto models = list_models(at.places);
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0].name, "nano");
  EXPECT_EQ(models[1].name, "Qwen/Coder-Next");
  for (const FoundModel& model : models) {
    EXPECT_EQ(*resolve_model(model.name, at.places), model.folder);
  }
  EXPECT_TRUE(list_models({{"/nowhere"}, {"/nowhere"}}).empty());
}

TEST(CardLicence, FrontMatterOnly) {
  EXPECT_EQ(card_licence("---\nlicense: apache-2.0\ntags:\n- code\n---\n# Model"), "apache-2.0");
  EXPECT_EQ(card_licence("---\r\nlicense: \"mit\"  \r\n---\r\n"), "mit");
  EXPECT_EQ(card_licence("---\nlicense: mit # yes\n---\n"), "mit");
  EXPECT_EQ(card_licence("---\nlicense: other\nlicense_name: qwen\n---\n"), "qwen");
  EXPECT_EQ(card_licence("---\nlicense: other\n---\n"), "other");
  EXPECT_EQ(card_licence("---\nlicense:\n- bsd-3-clause\n- mit\n---\n"), "bsd-3-clause");
  EXPECT_EQ(card_licence("---\nlicense: [mit, apache-2.0]\n---\n"), "mit");
  EXPECT_EQ(card_licence("---\ntags: x\n---\nlicense: mit\n---\n"), "");
  EXPECT_EQ(card_licence("license: mit\n"), "");
  for (const char* broken : {"", "---", "---\nlicense: mit", "---\nlicense:\n---\n",
                             "---\nlicense: \"\n---\n", "---\nlicense: [\n---\n"}) {
    EXPECT_EQ(card_licence(broken), "") << broken;
  }
}

TEST(ModelInfo, DimensionsBytesAndLicence) {
  TempFolder folder;
  folder.write("config.json", kTinyConfig);
  folder.write("README.md", "---\nlicense: apache-2.0\n---\n");
  const std::string layer = "model.layers.0.";
  folder.write(
      "model.safetensors",
      safetensors_content(
          {{"lm_head.weight", zero_tensor(DType::kBF16, {256, 64})},
           {"model.embed_tokens.weight", zero_tensor(DType::kBF16, {256, 64})},
           {layer + "mlp.experts.0.up_proj.weight", zero_tensor(DType::kF8E4M3, {32, 64})},
           {layer + "mlp.experts.0.up_proj.weight_scale_inv", zero_tensor(DType::kBF16, {1, 1})},
           {layer + "mlp.gate.weight", zero_tensor(DType::kBF16, {8, 64})},
           {layer + "linear_attn.norm.weight", zero_tensor(DType::kF32, {16})},
           {layer + "input_layernorm.weight", zero_tensor(DType::kBF16, {64})},
           {"mtp.layers.0.mlp.experts.0.up_proj.weight", zero_tensor(DType::kF8E4M3, {32, 64})},
           {"model.visual.norm.weight", zero_tensor(DType::kBF16, {8})}}));
  const auto info = model_info(folder.path());
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->licence, "apache-2.0");
  EXPECT_EQ(info->layers, 2);
  EXPECT_EQ(info->delta_layers, 1);
  EXPECT_EQ(info->parameters_total, 195'096);
  EXPECT_EQ(info->parameters_stored, 2 * 256 * 64 + 32 * 64 + 8 * 64 + 16 + 64);
  EXPECT_EQ(info->parameters_stored_mtp, 32 * 64);
  EXPECT_EQ(info->tensors, 9);
  std::vector<std::string> rows;
  int64_t bytes = 0;
  for (const ModelPart& part : info->parts) {
    rows.push_back(fmt::format("{} {} {}", part.part, part.dtype, part.bytes));
    bytes += part.bytes;
  }
  EXPECT_EQ(bytes, info->bytes);
  std::sort(rows.begin(), rows.end());
  EXPECT_EQ(rows, (std::vector<std::string>{"delta net F32 64", "embedding BF16 32768",
                                            "head BF16 32768", "mtp F8_E4M3 2048", "norms BF16 128",
                                            "routed experts BF16 2", "routed experts F8_E4M3 2048",
                                            "router BF16 1024", "vision BF16 16"}));
}

}  // namespace
}  // namespace moray
