// The quantised head: every code is the E4M3 number nearest to its weight by its block's scale.
#include "src/model/fp8_head.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "fixture.h"

namespace moray {
namespace {

constexpr float kCodeMax = 448.0f;

TEST(Float8, RoundsToTheNearestCodeTiesToEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = f8e4m3_to_float(static_cast<uint8_t>(code));
    const float high = f8e4m3_to_float(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;  // exact
    const int even = code % 2 == 0 ? code : code + 1;
    for (const int sign : {0, 0x80}) {
      const auto found = [&](float magnitude) {
        return float_to_f8e4m3(sign == 0 ? magnitude : -magnitude);
      };
      EXPECT_EQ(found(low), sign | code);
      EXPECT_EQ(found(std::nextafter(middle, 0.0f)), sign | code);
      EXPECT_EQ(found(middle), sign | even);
      EXPECT_EQ(found(std::nextafter(middle, 1e9f)), sign | (code + 1));
    }
  }
  EXPECT_EQ(float_to_f8e4m3(449.0f), 0x7e);
  EXPECT_EQ(float_to_f8e4m3(-INFINITY), 0xfe);
  EXPECT_EQ(float_to_f8e4m3(NAN) & 0x7f, 0x7f);
}

// Rows and columns on and off the blocks of 128, in each format a head may come in.
TEST(Fp8Head, CodesAreNearestByTheBlocksScale) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  ThreadPool threads(2);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const auto& [rows, cols] : {std::pair{1, 8}, {127, 128}, {128, 136}, {300, 264}}) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << rows << "x" << cols);
      const auto count = static_cast<size_t>(rows * cols);
      std::vector<float> values(count);
      std::vector<uint16_t> bits(count);
      for (size_t i = 0; i < count; ++i) {
        // Now and then far smaller, or nothing.
        const float scale = engine() % 16 == 0 ? 1e-4f : engine() % 64 == 0 ? 0 : 1;
        bits[i] = float_to_bf16(normal(engine) * scale);
        values[i] = bf16_to_float(bits[i]);
      }
      Weights weights;
      weights.head = {dtype == DType::kBF16 ? static_cast<const void*>(bits.data()) : values.data(),
                      nullptr, rows, cols, dtype};
      const auto quantised = with_fp8_head(weights, threads);
      const MatrixView& head = quantised->head;
      ASSERT_EQ(head.dtype, DType::kF8E4M3);
      ASSERT_EQ(head.rows, rows);
      ASSERT_EQ(head.cols, cols);
      const auto* codes = static_cast<const uint8_t*>(head.data);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t col = 0; col < cols; ++col) {
          const float scale =
              head.scales[row / kScaleBlock * head.scale_cols() + col / kScaleBlock];
          float largest = 0;
          for (int64_t r = row / 128 * 128; r < std::min<int64_t>(rows, row / 128 * 128 + 128);
               ++r) {
            for (int64_t c = col / 128 * 128; c < std::min<int64_t>(cols, col / 128 * 128 + 128);
                 ++c) {
              largest = std::max(largest, std::fabs(values[static_cast<size_t>(r * cols + c)]));
            }
          }
          ASSERT_EQ(scale, largest / kCodeMax);
          const double weight = values[static_cast<size_t>(row * cols + col)];
          const double found = double{f8e4m3_to_float(codes[row * cols + col])} * scale;
          // Half a spacing of E4M3, and what two FP32 roundings before it may move.
          const double bound = std::max(std::fabs(weight) * 0x1p-4, scale * 0x1p-10) * (1 + 1e-6);
          ASSERT_LE(std::fabs(found - weight), bound) << row << ", " << col;
        }
      }
    }
  }
}

TEST(Fp8Head, ATiedEmbeddingStaysAsPublished) {
  Weights weights = *load_fixture("tiny-experts").weights;
  weights.head = weights.embedding;
  ThreadPool threads(1);
  const auto quantised = with_fp8_head(weights, threads);
  EXPECT_TRUE(quantised->has_own_head());
  EXPECT_EQ(quantised->embedding.data, weights.embedding.data);
  EXPECT_EQ(quantised->embedding.dtype, weights.embedding.dtype);
  EXPECT_FALSE(weights.has_own_head());
}

}  // namespace
}  // namespace moray
