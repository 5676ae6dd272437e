// exp() of numbers <= 0 with the same bits on every machine.
//
// The C library picks its exp by CPU, and the variants differ in the last bit; a draw that falls on
// such a bit would give another text. This one uses only IEEE additions, products and a power of
// two, in a fixed order (the build forbids contraction to FMA).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace moray {

inline constexpr int kExponentialTerms = 14;

// 1/0!, 1/1!, ..., 1/13!.
inline constexpr std::array<double, kExponentialTerms> kInverseFactorials = [] {
  std::array<double, kExponentialTerms> table{};
  double factorial = 1;
  for (int n = 0; n < kExponentialTerms; ++n) {
    if (n > 1) factorial *= n;
    table[static_cast<size_t>(n)] = 1 / factorial;
  }
  return table;
}();

// e^x for x <= 0; relative error below 1e-15, and 0 for x <= -707 (results near the subnormals).
// Reduction x = k ln2 + r with |r| <= ln2/2, then Taylor to r^13 (the next term is < 5e-18).
inline double exp_nonpositive(double x) {
  if (!(x > -707.0)) return 0.0;
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 0x1.62e42fefa38p-1;  // 41 bits, so that k * high is exact
  constexpr double kLn2Low = 0x1.ef35793c7673p-45;
  const int64_t k = static_cast<int64_t>(x * kLog2E - 0.5);
  const double r = (x - static_cast<double>(k) * kLn2High) - static_cast<double>(k) * kLn2Low;
  double sum = kInverseFactorials[kExponentialTerms - 1];
  for (size_t n = kExponentialTerms - 1; n-- > 0;) sum = sum * r + kInverseFactorials[n];
  return sum * std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
}

}  // namespace moray
