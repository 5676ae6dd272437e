// Activations as E4M3 codes with a scale for 128 columns of a row, and W8A8 products of them.
#pragma once

#include <cmath>
#include <vector>

#include "src/kernels/check/products.h"
#include "src/kernels/check/random.h"

namespace moray::check {

inline constexpr int64_t kSlice = 128;

// A matrix of codes with scales of 128 columns by `scale_rows` rows (1: activations; 128: weights),
// scales row-major over blocks.
struct Quantised {
  int64_t rows = 0, cols = 0, scale_rows = 1;
  std::vector<uint8_t> codes;
  std::vector<float> scales;

  int64_t slices() const { return cols / kSlice; }
  float scale(int64_t row, int64_t slice) const {
    return scales[size_t(row / scale_rows * slices() + slice)];
  }
  double at(int64_t row, int64_t col) const {
    return e4m3_value(codes[size_t(row * cols + col)]) * scale(row, col / kSlice);
  }
  // Scales as the kernels take those of activations: [slice, stride].
  std::vector<float> scale_columns(int64_t stride) const {
    std::vector<float> columns(size_t(slices() * stride), std::nanf("1"));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t s = 0; s < slices(); ++s) columns[size_t(s * stride + r)] = scale(r, s);
    return columns;
  }
  // Of weights (scale_rows 128).
  MatrixView view() const {
    return {.data = codes.data(),
            .scales = scales.data(),
            .rows = rows,
            .cols = cols,
            .dtype = DType::kF8E4M3};
  }
};

// Any code but NaN: magnitudes over all of E4M3's range.
inline void fill_codes(Random& random, uint8_t* codes, int64_t count) {
  uint64_t word = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i % 8 == 0) word = random.word();
    const auto code = static_cast<uint8_t>(word >> (i % 8 * 8));
    codes[i] = (code & 0x7f) == 0x7f ? code ^ 1 : code;
  }
}

inline Quantised random_quantised(Random& random, int64_t rows, int64_t cols, int64_t scale_rows,
                                  float scale) {
  Quantised q{.rows = rows, .cols = cols, .scale_rows = scale_rows, .codes = {}, .scales = {}};
  q.codes.resize(size_t(rows * cols));
  fill_codes(random, q.codes.data(), rows * cols);
  const int64_t blocks = (rows + scale_rows - 1) / scale_rows * (cols / kSlice);
  for (int64_t i = 0; i < blocks; ++i) q.scales.push_back(scale * (0.5f + random.uniform()));
  return q;
}

// Row r of x times row n of w. An instruction adds 32 products to its accumulator; sm_90's unit
// shifts the 33 addends to the largest of them and keeps 13 fraction bits of it, so each may lose
// 2^-13 of the largest. A slice is 4 such. Then a product and a sum in FP32 for each slice.
inline Estimate w8a8_product(const Quantised& x, int64_t r, const MatrixView& w, int64_t n) {
  Estimate sum;
  double magnitude = 0;
  const uint8_t* const a = x.codes.data() + r * x.cols;
  const uint8_t* const b = static_cast<const uint8_t*>(w.data) + n * w.cols;
  for (int64_t s = 0; s < x.slices(); ++s) {
    double part = 0, largest = 0;
    for (int64_t k = s * kSlice; k < (s + 1) * kSlice; ++k) {
      const double term = e4m3_value(a[k]) * e4m3_value(b[k]);
      part += term;
      largest = std::max({largest, std::abs(term), k % 32 == 31 ? std::abs(part) : 0});
    }
    const double factor = double{x.scale(r, s)} * w.scales[n / kScaleBlock * w.scale_cols() + s];
    sum.value += part * factor;
    sum.error += largest * factor * 4 * 33 * 0x1p-13;
    magnitude += std::abs(part * factor);
  }
  sum.error += magnitude * double(x.slices() + 4) * kF32Epsilon;
  return sum;
}

}  // namespace moray::check
