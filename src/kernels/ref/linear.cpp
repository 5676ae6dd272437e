// Oracles of linear, route and moe: dense sums over weights widened one by one.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "src/base/check.h"
#include "src/kernels/ref/ref.h"

namespace moray::ref {

namespace {

// y[n] = sum_k x[k] W[n, k].
std::vector<double> multiply(const MatrixView& weight, const float* x) {
  std::vector<double> y(size_t(weight.rows), 0.0);
  for (int64_t n = 0; n < weight.rows; ++n) {
    for (int64_t k = 0; k < weight.cols; ++k) y[size_t(n)] += weight_at(weight, n, k) * x[k];
  }
  return y;
}

// down(round(silu(gate x) * (up x))), unrounded.
std::vector<double> expert_output(const ExpertView& expert, const float* x, Precision precision) {
  const auto gate = multiply(expert.gate, x);
  const auto up = multiply(expert.up, x);
  std::vector<float> inner(gate.size());
  for (size_t i = 0; i < gate.size(); ++i) inner[i] = round_to(precision, silu(gate[i]) * up[i]);
  return multiply(expert.down, inner.data());
}

}  // namespace

void linear(const LinearArgs& args) {
  for (const LinearTarget& target : args.targets) {
    CHECK(target.weight.cols == args.k, target.weight.cols, args.k);
    for (int64_t t = 0; t < args.tokens; ++t) {
      const auto product = multiply(target.weight, args.x + t * args.k);
      float* y = target.y + t * target.y_stride;
      for (size_t n = 0; n < product.size(); ++n) {
        y[n] = args.output == LinearArgs::Output::kStore
                   ? static_cast<float>(product[n])
                   : round_to(args.precision, y[n] + product[n]);
      }
    }
  }
}

void route(const RouteArgs& args) {
  const int64_t experts = args.gate.rows;
  CHECK(args.top_k >= 1 && args.top_k <= experts, args.top_k, experts);
  for (int64_t t = 0; t < args.tokens; ++t) {
    const float* x = args.x + t * args.gate.cols;
    std::vector<double> p = multiply(args.gate, x);
    const double top = *std::max_element(p.begin(), p.end());
    for (double& value : p) value = std::exp(value - top);
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= total;
    std::vector<int32_t> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return p[size_t(a)] > p[size_t(b)]; });
    double chosen = 0;
    for (int64_t i = 0; i < args.top_k; ++i) chosen += p[size_t(order[size_t(i)])];
    for (int64_t i = 0; i < args.top_k; ++i) {
      const int32_t id = order[size_t(i)];
      args.expert_ids[t * args.top_k + i] = id;
      args.expert_weights[t * args.top_k + i] =
          static_cast<float>(p[size_t(id)] / (args.normalise ? chosen : 1.0));
    }
    if (!args.shared_gate.empty()) {
      args.shared_weight[t] = static_cast<float>(sigmoid(multiply(args.shared_gate, x)[0]));
    }
  }
}

void moe(const MoeArgs& args) {
  for (int64_t t = 0; t < args.tokens; ++t) {
    const float* x = args.x + t * args.hidden;
    float* residual = args.residual + t * args.hidden;
    std::vector<double> sum(residual, residual + args.hidden);
    for (int64_t i = 0; i < args.top_k; ++i) {
      const int32_t id = args.expert_ids[t * args.top_k + i];
      CHECK(id >= 0 && size_t(id) < args.experts.size(), id, args.experts.size());
      const auto y = expert_output(args.experts[size_t(id)], x, args.precision);
      const double weight = args.expert_weights[t * args.top_k + i];
      for (size_t n = 0; n < sum.size(); ++n) sum[n] += weight * y[n];
    }
    if (!args.shared.empty()) {
      const auto y = expert_output(args.shared, x, args.precision);
      for (size_t n = 0; n < sum.size(); ++n) sum[n] += double{args.shared_weight[t]} * y[n];
    }
    for (size_t n = 0; n < sum.size(); ++n) residual[n] = round_to(args.precision, sum[n]);
  }
}

}  // namespace moray::ref
