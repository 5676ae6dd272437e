// exp, sigmoid, silu and softplus on lanes: one polynomial each, the same for every lane and tail,
// so that a value never depends on where it stood. Error bounds are checked over a dense sweep of
// floats by tests/kernels/math_test.cpp. NaN gives NaN.
#pragma once

#include <cstdint>

namespace moray::cpu {
namespace {

// e^x within 2 ulp (denormal results within one denormal step), 0 below -104, infinity above 89. x
// = n ln2 + r, |r| <= ln2/2; e^r = 1 + r + r^2 p(r), p the least-maximum fit of degree 4 (relative
// error 2^-28, below the rounding of the sum).
template <class L>
inline typename L::F exp_of(typename L::F x) {
  using F = typename L::F;
  x = L::min(L::set(89.0f), L::max(L::set(-104.0f), x));  // NaN stays: it is the second operand
  const F n = L::round_to_integer(L::mul(x, L::set(1.44269504089f)));
  F r = L::fnma(n, L::set(0.693145751953125f), x);  // ln2 in two parts; n times the first is exact
  r = L::fnma(n, L::set(1.42860682030941723e-6f), r);
  F p = L::set(0.0013814553385600448f);
  p = L::fma(p, r, L::set(0.00836874544620514f));
  p = L::fma(p, r, L::set(0.04166838899254799f));
  p = L::fma(p, r, L::set(0.1666652113199234f));
  p = L::fma(p, r, L::set(0.4999999403953552f));
  p = L::add(L::fma(p, L::mul(r, r), r), L::set(1.0f));
  return L::times_power_of_two(p, n);
}

// 1 / (1 + e^-x) within 3 ulp, or 3e-37: zero below -88, where e^-x overflows.
template <class L>
inline typename L::F sigmoid_of(typename L::F x) {
  return L::div(L::set(1.0f), L::add(L::set(1.0f), exp_of<L>(L::negate(x))));
}

// x / (1 + e^-x) within 3 ulp, or 3e-37: zero below -88.
template <class L>
inline typename L::F silu_of(typename L::F x) {
  return L::div(x, L::add(L::set(1.0f), exp_of<L>(L::negate(x))));
}

// log(1 + e^x), and x itself above 20, within 4 ulp. log(1 + u) = 2 s (1 + s^2 q(s^2)) with
// s = u / (2 + u), u = e^-|x| <= 1, so s <= 1/3; q is a least-maximum fit of degree 3.
template <class L>
inline typename L::F softplus_of(typename L::F x) {
  using F = typename L::F;
  const F u = exp_of<L>(L::negate(L::abs(x)));
  const F s = L::div(u, L::add(u, L::set(2.0f)));
  const F z = L::mul(s, s);
  F q = L::set(0.14012230932712555f);
  q = L::fma(q, z, L::set(0.13999569416046143f));
  q = L::fma(q, z, L::set(0.20010849833488464f));
  q = L::fma(q, z, L::set(0.3333320617675781f));
  const F twice = L::add(s, s);
  const F log = L::fma(L::mul(q, z), twice, twice);
  // The larger of 0 and x; x second, so that NaN stays.
  return L::where_greater(x, L::set(20.0f), x, L::add(log, L::max(L::set(0.0f), x)));
}

// body(i, first_count) for each group of lanes of [0, count); first_count is kWidth or the rest.
template <class L, class Body>
inline void for_lanes(int64_t count, Body&& body) {
  int64_t i = 0;
  for (; i + L::kWidth <= count; i += L::kWidth) body(i, int64_t{L::kWidth});
  if (i < count) body(i, count - i);
}

// Loads and stores of a whole vector or of its first lanes.
template <class L>
inline typename L::F load_some(const float* from, int64_t count) {
  return count == L::kWidth ? L::load(from) : L::load_first(from, count);
}
template <class L>
inline void store_some(float* to, typename L::F value, int64_t count) {
  if (count == L::kWidth) {
    L::store(to, value);
  } else {
    L::store_first(to, value, count);
  }
}

}  // namespace
}  // namespace moray::cpu
