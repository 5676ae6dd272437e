// How close the delta net on the GPU must come to the plain recurrence, and why.
#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "tests/gpu/delta_condition.h"
#include "tests/gpu/delta_machine.h"

namespace moray::delta_test {

// A step computes in FP32. Outputs are o / rms(o) times norm and silu(z); o and its parts are sums
// of at most key_dim + 64 products (rounding: about (key_dim / 8 + 64) epsilons of the magnitudes),
// and the division by rms(o) may enlarge that where o is small beside its parts: a factor of 64 is
// allowed for it. Then BF16 rounds by half a spacing.
inline void expect_step_close(const Sequence& s, const std::vector<float>& actual,
                              const std::vector<float>& expected) {
  const double relative = 64 * (s.d.key_dim / 8.0 + 64) * kF32Epsilon;
  expect_close(actual.data(), expected.data(), int64_t(actual.size()), [&](int64_t i) {
    return (relative + kBf16Spacing / 2) * std::abs(expected[size_t(i)]) + relative;
  });
}

// Prefill rounds operands to F16: on the way to o eight factors (q, S, mix, D, R, the inverse, keys
// twice), each by at most u = 2^-11, u / sqrt(3) in the mean: 1.6 u of the parts of o. With a
// factor of four for parts larger than o and six standard deviations for the worst of many elements
// that is below 64 u, times |norm silu(z)|. Where parts cancel further, u of their sum bounds it
// (delta_condition.h): of 73 sequences that went through an emulation of these roundings in NumPy
// five left the 64 u, and none came beyond 0.2 u of that sum. Over all elements the mean square is
// that of BF16 rounding, at most 2^-8 / sqrt(3), and of 4 u.
inline void expect_prefill_close(const Sequence& s, int begin, const std::vector<float>& actual,
                                 const std::vector<float>& expected, double roundoffs = 4) {
  double errors = 0, squares = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    errors += std::pow(double{actual[i]} - expected[i], 2);
    squares += std::pow(double{expected[i]}, 2);
  }
  EXPECT_LE(std::sqrt(errors / squares),
            std::hypot(0x1p-8 / std::sqrt(3), roundoffs * kF16Roundoff));
  const auto gate = [&](int64_t i) {
    const double z = s.z[size_t(begin * s.d.width() + i)];
    return std::abs(s.norm[size_t(i % s.d.value_dim)] * z / (1 + std::exp(-z)));
  };
  const auto usual = [&](int64_t i) {
    return kBf16Spacing / 2 * std::abs(double{expected[size_t(i)]}) +
           16 * roundoffs * kF16Roundoff * gate(i);
  };
  std::optional<Condition> condition;  // costs as much as the oracle: only where it is asked for
  expect_close(actual.data(), expected.data(), int64_t(actual.size()), [&](int64_t i) {
    if (std::abs(double{actual[size_t(i)]} - expected[size_t(i)]) <= usual(i)) return usual(i);
    if (!condition) condition.emplace(s);
    return std::max(usual(i), kBf16Spacing / 2 * std::abs(double{expected[size_t(i)]}) +
                                  kF16Roundoff * gate(i) * (*condition)[begin * s.d.width() + i]);
  });
}

// Of what prefill leaves, S and the writes carry F16 roundoff (a few u, of the largest), keys and
// decays only that of FP32; inputs are copied.
inline void expect_states_close(const HostState& actual, const HostState& expected, int position) {
  const auto found = actual.held(position), wanted = expected.held(position);
  const double bounds[] = {0, 16 * kF16Roundoff, 64 * kF32Epsilon, 16 * kF16Roundoff,
                           256 * kF32Epsilon};
  const char* const names[] = {"conv_tail", "s", "keys", "writes", "log_decay"};
  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(names[i]);
    double largest = 0;
    for (float value : wanted[i]) largest = std::max(largest, std::abs(double{value}));
    expect_close(found[i].data(), wanted[i].data(), int64_t(found[i].size()),
                 [&](int64_t) { return bounds[i] * largest; });
  }
}

}  // namespace moray::delta_test
