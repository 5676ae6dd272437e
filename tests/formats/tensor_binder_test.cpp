// TensorBinder against tensors that are missing, misshapen, mistyped or wrongly scaled (B49).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "src/formats/checkpoint.h"
#include "tests/support/config_texts.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace moray {
namespace {

std::shared_ptr<const Checkpoint> opened(const TempFolder& folder, const TestTensors& tensors) {
  folder.write("config.json", kTinyConfig);
  folder.write("model.safetensors", safetensors_content(tensors));
  auto checkpoint = Checkpoint::open(folder.path());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  return checkpoint.ok() ? *checkpoint : nullptr;
}

// What binding the FP8 matrix "w.weight" [130, 200] complains of.
std::string complaint_about(const TestTensors& tensors) {
  TempFolder folder;
  const auto checkpoint = opened(folder, tensors);
  if (!checkpoint) return "not opened";
  TensorBinder binder(*checkpoint);
  EXPECT_TRUE(binder.matrix("w.weight", 130, 200).empty());
  EXPECT_TRUE(binder.matrix("w.weight", 130, 200).empty());  // again: no second line
  const Status status = binder.finish();
  EXPECT_EQ(status.code(), StatusCode::kInvalidFile);
  const std::string start = folder.path() + ": tensors disagree with config.json: ";
  EXPECT_EQ(status.message().find(start), 0u) << status.message();
  return status.message().substr(std::min(start.size(), status.message().size()));
}

TestTensors fp8_with_scales(TestTensor scales) {
  return {{"w.weight", zero_tensor(DType::kF8E4M3, {130, 200})},
          {"w.weight_scale_inv", std::move(scales)}};
}

TEST(TensorBinder, B49_ScalesMustFitTheirWeight) {
  EXPECT_EQ(complaint_about({{"w.weight", zero_tensor(DType::kF8E4M3, {130, 200})}}),
            "w.weight_scale_inv: found nothing, expected a tensor of shape [2, 2]");
  EXPECT_EQ(complaint_about(fp8_with_scales(zero_tensor(DType::kF32, {1, 2}))),
            "w.weight_scale_inv: found shape [1, 2], expected [2, 2]");
  EXPECT_EQ(complaint_about(fp8_with_scales(zero_tensor(DType::kF32, {4}))),
            "w.weight_scale_inv: found shape [4], expected [2, 2]");
  EXPECT_EQ(complaint_about(fp8_with_scales(zero_tensor(DType::kF8E4M3, {2, 2}))),
            "w.weight_scale_inv: found dtype F8_E4M3, expected F32, BF16 or F16");
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    const std::vector<float> values = {1, 1, bad, 1};
    const std::string message = complaint_about(fp8_with_scales(f32_tensor({2, 2}, values)));
    EXPECT_NE(message.find("at element 2, expected finite values"), std::string::npos) << message;
  }
}

TEST(TensorBinder, B49_WeightsMustFitTheConfig) {
  EXPECT_EQ(complaint_about({{"other", zero_tensor(DType::kF32, {1})}}),
            "w.weight: found nothing, expected a tensor of shape [130, 200]");
  EXPECT_EQ(complaint_about({{"w.weight", zero_tensor(DType::kBF16, {200, 130})}}),
            "w.weight: found shape [200, 130], expected [130, 200]");
  EXPECT_EQ(complaint_about({{"w.weight", zero_tensor(DType::kBF16, {130, 200, 1})}}),
            "w.weight: found shape [130, 200, 1], expected [130, 200]");
  EXPECT_EQ(complaint_about({{"w.weight", zero_tensor(DType::kBF16, {0})}}),
            "w.weight: found shape [0], expected [130, 200]");
  EXPECT_EQ(complaint_about({{"w.weight", zero_tensor(DType::kU8, {130, 200})}}),
            "w.weight: found dtype U8, expected F32, BF16, F16 or F8_E4M3");
}

TEST(TensorBinder, ScalesBesideAnUnquantisedWeightAreADisagreement) {
  TempFolder folder;
  const auto checkpoint =
      opened(folder, {{"w.weight", zero_tensor(DType::kBF16, {130, 200})},
                      {"w.weight_scale_inv", zero_tensor(DType::kF32, {2, 2})}});
  TensorBinder binder(*checkpoint);
  (void)binder.matrix("w.weight", 130, 200);
  EXPECT_NE(binder.finish().message().find(
                "w.weight_scale_inv: found beside a weight of dtype BF16, expected F8_E4M3"),
            std::string::npos);
}

TEST(TensorBinder, ScalesOfEveryDTypeAreWidenedExactly) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    TestTensor scales = zero_tensor(dtype, {2, 2});
    std::vector<float> expected;
    for (int index = 0; index < 4; ++index) {
      if (dtype == DType::kF32) {
        expected.push_back(std::ldexp(static_cast<float>(random() % 1000), -12));
        std::memcpy(scales.bytes.data() + 4 * index, &expected.back(), 4);
      } else {
        // Exponent fields 8..15 of F16 and 0x40.. of BF16: finite whatever the other bits are.
        const uint16_t bits = static_cast<uint16_t>(0x2000 | (random() & 0x1fff));
        expected.push_back(dtype == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits));
        std::memcpy(scales.bytes.data() + 2 * index, &bits, 2);
      }
    }
    TempFolder folder;
    const auto checkpoint = opened(folder, fp8_with_scales(scales));
    TensorBinder binder(*checkpoint);
    const MatrixView view = binder.matrix("w.weight", 130, 200);
    ASSERT_NE(view.scales, nullptr);
    for (int index = 0; index < 4; ++index) EXPECT_EQ(view.scales[index], expected[index]);
    EXPECT_EQ(binder.take_storage().size(), 1u);
  }
}

TEST(TensorBinder, B49_NonFiniteSmallTensorsAreNamed) {
  TempFolder folder;
  const std::vector<float> values = {1, std::numeric_limits<float>::quiet_NaN()};
  const auto checkpoint = opened(folder, {{"norm.weight", f32_tensor({2}, values)}});
  TensorBinder binder(*checkpoint);
  EXPECT_TRUE(binder.widened("norm.weight", {2}).empty());
  EXPECT_NE(binder.finish().message().find("norm.weight: found nan at element 1, expected finite"),
            std::string::npos);
}

TEST(TensorBinder, FusedSlicesOfEveryExpertAndComplaintOnce) {
  constexpr int64_t kExperts = 3, kRows = 4, kCols = 2;
  std::vector<float> values(kExperts * kRows * kCols);
  for (size_t index = 0; index < values.size(); ++index) values[index] = static_cast<float>(index);
  TempFolder folder;
  const auto checkpoint =
      opened(folder, {{"experts", f32_tensor({kExperts, kRows, kCols}, values)}});
  TensorBinder binder(*checkpoint);
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    for (const int64_t begin : {0, 2}) {
      const MatrixView view =
          binder.fused_slice("experts", expert, kExperts, begin, 2, kRows, kCols);
      float first;
      std::memcpy(&first, view.data, 4);
      EXPECT_EQ(first, static_cast<float>((expert * kRows + begin) * kCols));
    }
    EXPECT_TRUE(binder.fused_slice("absent", expert, kExperts, 0, 2, kRows, kCols).empty());
  }
  EXPECT_NE(binder.finish().message().find(
                "config.json: absent: found nothing, expected a tensor of shape [3, 4, 2]"),
            std::string::npos);
  EXPECT_EQ(binder.finish().message().find(';'), std::string::npos);
}

TEST(TensorBinder, UnusedTensorsAreListed) {
  TempFolder folder;
  const auto checkpoint = opened(folder, {{"a", zero_tensor(DType::kF32, {1})},
                                          {"b", zero_tensor(DType::kF32, {1})},
                                          {"c", zero_tensor(DType::kF32, {1})}});
  TensorBinder binder(*checkpoint);
  (void)binder.widened("b", {1});
  EXPECT_EQ(binder.unused(), (std::vector<std::string_view>{"a", "c"}));
  binder.complain("mtp: found no tensors, expected 19");
  EXPECT_NE(binder.finish().message().find("mtp: found no tensors"), std::string::npos);
}

TEST(TensorBinder, LongReportsAreCut) {
  TempFolder folder;
  const auto checkpoint = opened(folder, {{"a", zero_tensor(DType::kF32, {1})}});
  TensorBinder binder(*checkpoint);
  for (int layer = 0; layer < 100; ++layer) {
    (void)binder.matrix(fmt::format("model.layers.{}.w.weight", layer), 2, 2);
  }
  const std::string message = binder.finish().message();
  EXPECT_NE(message.find("model.layers.19.w"), std::string::npos);
  EXPECT_EQ(message.find("model.layers.20.w"), std::string::npos);
  EXPECT_TRUE(message.ends_with("; and 80 more")) << message;
}

}  // namespace
}  // namespace moray
