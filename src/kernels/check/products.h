// What a product of a matrix's row and a vector is, in double, and by how much a kernel may miss
// it.
//
// Bounds are derived, not measured: from the widths of the units that round and from the number of
// terms. Every check and test of a product takes them from here.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "src/kernels/ref/ref.h"

namespace moray::check {

inline constexpr double kF32Epsilon = 0x1p-24;  // half a unit in the last place of FP32, relative
inline constexpr double kBf16Spacing = 0x1p-7;  // largest distance of BF16 neighbours, relative

// The value of each code, so that oracles are quick.
inline double e4m3_value(uint8_t code) {
  static const std::array<double, 256> values = [] {
    std::array<double, 256> made{};
    for (size_t i = 0; i < made.size(); ++i) made[i] = f8e4m3_to_float(static_cast<uint8_t>(i));
    return made;
  }();
  return values[code];
}

// The tensor core adds sixteen products at a time to the accumulator, aligned to the largest and
// cut at 2^-23 of it or a little coarser, so each of the K / 16 additions loses at most 2^-21 of
// the magnitudes' sum; scales and slices add less than as much again.
struct Product {
  double value = 0, magnitude = 0, weights = 0;
  double largest = 0, largest_term = 0;  // activation; product
  int64_t terms = 0;
  // With BF16 activations.
  double error() const { return double(terms / 16 + 8) * 0x1p-21 * magnitude; }
  // With the F16 activations of decode kernels, which err by 2^-39 of their vector's largest.
  double step_error() const { return error() + 0x1p-39 * largest * weights; }
};
inline Product product(const MatrixView& weight, int64_t row, const float* x) {
  Product sum{.terms = weight.cols};
  const auto add = [&](double w, float activation) {
    const double term = w * activation;
    sum.value += term;
    sum.magnitude += std::abs(term);
    sum.weights += std::abs(w);
    sum.largest = std::max(sum.largest, std::abs(double{activation}));
    sum.largest_term = std::max(sum.largest_term, std::abs(term));
  };
  if (weight.dtype == DType::kF8E4M3) {
    const auto* codes = static_cast<const uint8_t*>(weight.data) + row * weight.cols;
    const float* scales = weight.scales + row / kScaleBlock * weight.scale_cols();
    for (int64_t k = 0; k < weight.cols; ++k) {
      add(e4m3_value(codes[k]) * scales[k / kScaleBlock], x[k]);
    }
  } else {
    for (int64_t k = 0; k < weight.cols; ++k) add(ref::weight_at(weight, row, k), x[k]);
  }
  return sum;
}

// Half a BF16 spacing of a value that may err by `error` itself.
inline double bf16_rounding(double value, double error = 0) {
  return kBf16Spacing / 2 * (std::abs(value) + error) + 2 * kF32Epsilon * std::abs(value) +
         0x1p-130;
}

// silu(gate) * up: |silu'| <= 1.1; the fast exponential errs by (2 + |gate|) 2^-22, the division by
// 2^-22.
struct Estimate {
  double value = 0, error = 0;
};
inline Estimate swiglu(Estimate gate, Estimate up) {
  const double silu = ref::silu(gate.value);
  const double y = silu * up.value;
  return {y, 1.1 * gate.error * (std::abs(up.value) + up.error) + std::abs(silu) * up.error +
                 (4 + std::abs(gate.value)) * 0x1p-22 * std::abs(y) + 0x1p-120};
}

}  // namespace moray::check
