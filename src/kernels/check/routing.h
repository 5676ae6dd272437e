// Oracles that several checks share: norms of rows, the choice of experts from logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "src/kernels/check/products.h"
#include "src/kernels/cuda/constants.h"

namespace moray::check {

inline std::vector<float> rms_normed(const cuda::Constants& c, const std::vector<float>& rows,
                                     const std::vector<float>& weight) {
  std::vector<float> out(rows.size());
  ref::rms_norm({.x = rows.data(),
                 .weight = weight.data(),
                 .rows = int64_t(rows.size()) / c.hidden,
                 .dim = c.hidden,
                 .eps = c.norm_eps,
                 .kind = c.zero_centred_norms ? NormKind::kZeroCentred : NormKind::kPlain,
                 .precision = Precision::kBfloat16,
                 .out = out.data()});
  return out;
}
// FP32 statistics err by some 2^-22, so that a rounding to BF16 may go to the neighbour: one
// spacing of the result, two where plain norms round twice.
inline double norm_bound(double expected) {
  return 2 * kBf16Spacing * std::abs(expected);
}

// The top_k experts of a token, larger logit first, ties to the lower id, and their weights.
struct Choice {
  std::vector<int> ids;
  std::vector<double> weights;
};
inline Choice choose(const cuda::Constants& c, const float* logits) {
  std::vector<int> order(static_cast<size_t>(c.experts));
  std::iota(order.begin(), order.end(), 0);
  const auto rank = [&](int e) { return std::isnan(logits[e]) ? -INFINITY : logits[e]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return rank(a) > rank(b); });
  const auto raised = [&](int e) { return std::exp(double{logits[e]} - logits[order[0]]); };
  double all = 0, chosen = 0;
  for (int e = 0; e < c.experts; ++e) all += raised(e);
  order.resize(static_cast<size_t>(c.top_k));
  for (const int e : order) chosen += raised(e);
  Choice choice{order, {}};
  for (const int e : order)
    choice.weights.push_back(raised(e) / (c.normalise_top_k ? chosen : all));
  return choice;
}
// Of a weight, relative: exp of up to some tens, and sums of few.
inline constexpr double kSoftmaxError = 0x1p-18;

}  // namespace moray::check
