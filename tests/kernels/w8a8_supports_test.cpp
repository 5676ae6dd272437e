// Which weights the W8A8 kernels take; what they refuse goes to the kernels for BF16 activations.
#include <gtest/gtest.h>

#include "src/kernels/cuda/w8a8.h"

namespace moray::cuda {
namespace {

alignas(256) char memory[4096];

Matrix matrix(int rows, int cols, Format format = Format::kFp8) {
  return {.data = memory,
          .scales = nullptr,
          .rows = rows,
          .cols = cols,
          .stride = (cols + 63) / 64 * 64,
          .format = format};
}

ExpertRecords records(int width, int hidden, Format format = Format::kFp8) {
  const int bytes = width * hidden;
  return {.base = memory,
          .record_bytes = 3LL * bytes + 4096,
          .up = bytes,
          .down = 2 * bytes,
          .gate_scales = 3 * bytes,
          .up_scales = 3 * bytes + 64,
          .down_scales = 3 * bytes + 128,
          .width = width,
          .gate_stride = hidden,
          .down_stride = width,
          .format = format};
}

TEST(W8a8Supports, MatricesOfE4m3WithWholeSlices) {
  EXPECT_TRUE(w8a8_supports(matrix(8192, 2048)));
  EXPECT_TRUE(w8a8_supports(matrix(72, 128)));
  EXPECT_FALSE(w8a8_supports(matrix(8192, 2048, Format::kBf16)));
  EXPECT_FALSE(w8a8_supports(matrix(128, 192)));  // half a slice
  EXPECT_FALSE(w8a8_supports(matrix(1, 2048)));   // a row of outputs is written 16 bytes at once
  Matrix moved = matrix(128, 128);
  moved.data = memory + 8;
  EXPECT_FALSE(w8a8_supports(moved));
  EXPECT_FALSE(w8a8_supports(Matrix{}));
}

TEST(W8a8Supports, ExpertsWhoseInnerWidthIsWholeSlices) {
  EXPECT_TRUE(w8a8_supports(records(512, 2048), 2048));
  EXPECT_TRUE(w8a8_supports(records(768, 2048), 2048));
  EXPECT_TRUE(w8a8_supports(records(128, 256), 256));
  EXPECT_FALSE(w8a8_supports(records(192, 256), 256));
  EXPECT_FALSE(w8a8_supports(records(128, 144), 144));
  EXPECT_FALSE(w8a8_supports(records(512, 2048, Format::kBf16), 2048));
  ExpertRecords odd = records(128, 256);
  odd.up += 8;
  EXPECT_FALSE(w8a8_supports(odd, 256));
}

}  // namespace
}  // namespace moray::cuda
