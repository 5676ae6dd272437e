// Quantised inputs on the host, and what W8A8 products of them are, in double, with the error that
// the tensor cores and FP32 may add.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/kernels/support.h"

namespace moray::cuda {

inline constexpr int64_t kSlice = 128;

// The value of each code, so that the oracle is quick.
inline float e4m3_value(uint8_t code) {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> made{};
    for (size_t i = 0; i < made.size(); ++i) made[i] = f8e4m3_to_float(static_cast<uint8_t>(i));
    return made;
  }();
  return values[code];
}

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
    return double{e4m3_value(codes[size_t(row * cols + col)])} * scale(row, col / kSlice);
  }
  // Scales as the kernels take those of activations: [slice, stride].
  std::vector<float> scale_columns(int64_t stride) const {
    std::vector<float> columns(size_t(slices() * stride), std::nanf("1"));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t s = 0; s < slices(); ++s) columns[size_t(s * stride + r)] = scale(r, s);
    return columns;
  }
};

// Any code but NaN: magnitudes over all of E4M3's range.
inline Quantised random_quantised(Random& random, int64_t rows, int64_t cols, int64_t scale_rows,
                                  float scale) {
  Quantised q{.rows = rows, .cols = cols, .scale_rows = scale_rows, .codes = {}, .scales = {}};
  for (int64_t i = 0; i < rows * cols; ++i) {
    const auto code = static_cast<uint8_t>(random.below(256));
    q.codes.push_back((code & 0x7f) == 0x7f ? code ^ 1 : code);
  }
  const int64_t blocks = (rows + scale_rows - 1) / scale_rows * (cols / kSlice);
  for (int64_t i = 0; i < blocks; ++i) q.scales.push_back(scale * (0.5f + random.uniform()));
  return q;
}

inline uint8_t nearest_e4m3(float value) {
  uint8_t best = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const float distance = std::abs(e4m3_value(static_cast<uint8_t>(code)) - std::abs(value));
    if (distance < std::abs(e4m3_value(best) - std::abs(value))) best = static_cast<uint8_t>(code);
  }
  return value < 0 ? best | 0x80 : best;
}

// As activations are quantised: a row's 128 columns share largest magnitude / 448.
inline Quantised quantise(const std::vector<float>& x, int64_t rows, int64_t cols) {
  Quantised q{.rows = rows, .cols = cols, .scale_rows = 1, .codes = {}, .scales = {}};
  for (int64_t at = 0; at < rows * cols; at += kSlice) {
    float largest = 0;
    for (int64_t i = at; i < at + kSlice; ++i) largest = std::max(largest, std::abs(x[size_t(i)]));
    q.scales.push_back(largest / 448);
    for (int64_t i = at; i < at + kSlice; ++i)
      q.codes.push_back(nearest_e4m3(x[size_t(i)] / q.scales.back()));
  }
  return q;
}

struct Sum {
  double value = 0;
  double bound = 0;  // of what a kernel may differ
};

// Row r of x times row n of w. An instruction adds 32 products to its accumulator; sm_90's unit
// shifts the 33 addends to the largest of them and keeps 13 fraction bits of it, so each may lose
// 2^-13 of the largest. A slice is 4 such. Then a product and a sum in FP32 for each slice.
inline Sum dot(const Quantised& x, int64_t r, const Quantised& w, int64_t n) {
  Sum sum;
  double magnitude = 0;
  for (int64_t s = 0; s < x.slices(); ++s) {
    double part = 0, largest = 0;
    for (int64_t k = s * kSlice; k < (s + 1) * kSlice; ++k) {
      const double product = double{e4m3_value(x.codes[size_t(r * x.cols + k)])} *
                             e4m3_value(w.codes[size_t(n * w.cols + k)]);
      part += product;
      largest = std::max({largest, std::abs(product), k % 32 == 31 ? std::abs(part) : 0});
    }
    const double factor = double{x.scale(r, s)} * w.scale(n, s);
    sum.value += part * factor;
    sum.bound += largest * factor * 4 * 33 * 0x1p-13;
    magnitude += std::abs(part * factor);
  }
  sum.bound += magnitude * double(x.slices() + 4) * kF32Epsilon;
  return sum;
}

// Half a unit in the last place of BF16.
inline double bf16_rounding(double value) {
  return std::abs(value) * 0x1p-8 + 1e-38;
}

}  // namespace moray::cuda
