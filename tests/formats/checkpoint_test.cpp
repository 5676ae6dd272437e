// Checkpoint and TensorBinder: tensors over all shards by name, every disagreement in one report.
#include "src/formats/checkpoint.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/support/config_texts.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace moray {
namespace {

const std::vector<float> kFour = {1, 2, 3, 4};

// A folder with two shards and tensors enough to try every kind of lookup.
void write_model(const TempFolder& folder) {
  folder.write("config.json", kTinyConfig);
  TestTensors first = {
      {"model.embed_tokens.weight", f32_tensor({2, 2}, kFour)},
      {"model.layers.0.q.weight", zero_tensor(DType::kF8E4M3, {130, 64})},
      {"model.layers.0.q.weight_scale_inv", f32_tensor({2, 1}, std::vector<float>{0.5f, 0.25f})},
  };
  TestTensors second = {
      {"model.experts", f32_tensor({2, 2, 1}, kFour)},
      {"model.norm.weight", TestTensor{DType::kBF16, {2}, std::string("\x80\x3f\x00\xc0", 4)}},
  };
  folder.write("model-00001-of-00002.safetensors", safetensors_content(first));
  folder.write("model-00002-of-00002.safetensors", safetensors_content(second));
  std::map<std::string, std::string> index;
  for (const auto& [name, tensor] : first) index[name] = "model-00001-of-00002.safetensors";
  for (const auto& [name, tensor] : second) index[name] = "model-00002-of-00002.safetensors";
  folder.write("model.safetensors.index.json", index_content(index));
}

TEST(Checkpoint, FindsTensorsOverAllShards) {
  TempFolder folder;
  write_model(folder);
  const auto opened = Checkpoint::open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const Checkpoint& checkpoint = **opened;
  EXPECT_EQ(checkpoint.names().size(), 5u);
  EXPECT_EQ(checkpoint.text_prefix(), "model.");
  EXPECT_EQ(checkpoint.generation().eos_token_ids, std::vector<int32_t>{3});
  const auto experts = checkpoint.find("model.experts");
  ASSERT_TRUE(experts);
  EXPECT_EQ(experts->bytes.size(), 16u);
  EXPECT_FALSE(checkpoint.find("model.none"));
}

TEST(TensorBinder, HandsOutViewsAndWidenedScales) {
  TempFolder folder;
  write_model(folder);
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  TensorBinder binder(**checkpoint);
  const MatrixView q = binder.matrix("model.layers.0.q.weight", 130, 64);
  ASSERT_NE(q.scales, nullptr);
  EXPECT_EQ(q.scales[1], 0.25f);
  EXPECT_EQ(q.dtype, DType::kF8E4M3);
  const MatrixView embed = binder.matrix_unquantised("model.embed_tokens.weight", 2, 2);
  EXPECT_EQ(static_cast<const float*>(embed.data)[3], 4);
  const MatrixView expert = binder.fused_slice("model.experts", 1, 2, 1, 1, 2, 1);
  EXPECT_EQ(static_cast<const float*>(expert.data)[0], 4);
  EXPECT_EQ(expert.rows, 1);
  const auto norm = binder.widened("model.norm.weight", {2});
  ASSERT_EQ(norm.size(), 2u);
  EXPECT_EQ(norm[0], 1);
  EXPECT_EQ(norm[1], -2);
  EXPECT_TRUE(binder.finish().ok());
  EXPECT_TRUE(binder.unused().empty());
}

TEST(TensorBinder, OneReportNamesEveryWrongTensor) {
  TempFolder folder;
  write_model(folder);
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  TensorBinder binder(**checkpoint);
  EXPECT_TRUE(binder.matrix("model.absent.weight", 2, 2).empty());
  EXPECT_TRUE(binder.matrix("model.embed_tokens.weight", 4, 2).empty());
  EXPECT_TRUE(binder.matrix_unquantised("model.layers.0.q.weight", 130, 64).empty());
  EXPECT_TRUE(binder.widened("model.norm.weight", {3}).empty());
  EXPECT_TRUE(binder.matrix("model.absent.weight", 2, 2).empty());  // told once
  const Status status = binder.finish();
  EXPECT_EQ(status.code(), StatusCode::kInvalidFile);
  EXPECT_EQ(status.message(),
            folder.path() +
                ": tensors disagree with config.json: "
                "model.absent.weight: found nothing, expected a tensor of shape [2, 2]; "
                "model.embed_tokens.weight: found shape [2, 2], expected [4, 2]; "
                "model.layers.0.q.weight: found dtype F8_E4M3, expected F32, BF16 or F16; "
                "model.norm.weight: found shape [2], expected [3]");
}

}  // namespace
}  // namespace moray
