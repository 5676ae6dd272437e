// How much an output of the chunked delta rule can lose to rounded operands: its condition.
//
// The chunk's products are sums of parts that may cancel: keys that meet almost at right angles,
// writes that take back what earlier ones put there. A relative error u of every factor moves a sum
// by up to u times the sum of its parts' magnitudes, so a chunk is computed twice here, once as it
// is and once with magnitudes. FP64; a plain loop over the formulas of delta_prefill_params.h.
#pragma once

#include <cmath>
#include <mutex>
#include <optional>
#include <vector>

#include "src/kernels/check/delta_machine.h"

namespace moray::check::delta {

// Parts of an output over its token's root mean square, [tokens, width]: what one relative error of
// every factor does to the normed output, before norm and gate.
class Condition {
 public:
  explicit Condition(const Sequence& s) : s_(s), d_(s.d), of_(size_t(s.tokens * s.d.width())) {
    for (int head = 0; head < d_.value_heads; ++head) add_head(head);
  }
  double operator[](int64_t element) const { return of_[size_t(element)]; }

 private:
  using Rows = std::vector<std::vector<double>>;
  static Rows zeros(int rows, int cols) {
    return Rows(size_t(rows), std::vector<double>(size_t(cols)));
  }
  // left right^T or, with `magnitudes`, |left| |right|^T.
  static Rows products(const Rows& left, const Rows& right, bool magnitudes) {
    Rows out = zeros(int(left.size()), int(right.size()));
    for (size_t i = 0; i < left.size(); ++i) {
      for (size_t j = 0; j < right.size(); ++j) {
        for (size_t c = 0; c < left[i].size(); ++c) {
          const double part = left[i][c] * right[j][c];
          out[i][j] += magnitudes ? std::abs(part) : part;
        }
      }
    }
    return out;
  }
  static double silu(double x) { return x / (1 + std::exp(-x)); }

  // silu of the convolution of `count` channels from `channel`, tokens [begin, begin + n).
  Rows convolved(int begin, int n, int64_t channel, int count) const {
    Rows out = zeros(n, count);
    for (int t = 0; t < n; ++t) {
      for (int c = 0; c < count; ++c) {
        double sum = 0;
        for (int j = 0; j < d_.taps; ++j) {
          const int from = begin + t - (d_.taps - 1) + j;
          if (from < 0) continue;
          sum += double{s_.conv[size_t((channel + c) * d_.taps + j)]} *
                 s_.qkv[size_t(from * d_.channels() + channel + c)];
        }
        out[size_t(t)][size_t(c)] = silu(sum);
      }
    }
    return out;
  }
  static void normalise(Rows& rows, double scale) {
    for (auto& row : rows) {
      double squares = 1e-6;
      for (double x : row) squares += x * x;
      for (double& x : row) x *= scale / std::sqrt(squares);
    }
  }

  void add_head(int head) {
    Rows state = zeros(d_.value_dim, d_.key_dim), parts = state;  // S^T, and of magnitudes
    for (int begin = 0; begin < s_.tokens; begin += kDeltaChunk) {
      add_chunk(head, begin, std::min<int>(kDeltaChunk, s_.tokens - begin), state, parts);
    }
  }

  void add_chunk(int head, int begin, int n, Rows& state, Rows& parts) {
    const int key_head = head / (d_.value_heads / d_.key_heads), keys = d_.key_heads * d_.key_dim;
    Rows q = convolved(begin, n, key_head * d_.key_dim, d_.key_dim);
    Rows k = convolved(begin, n, keys + key_head * d_.key_dim, d_.key_dim);
    const Rows v = convolved(begin, n, 2 * keys + int64_t{head} * d_.value_dim, d_.value_dim);
    normalise(q, 1 / std::sqrt(double(d_.key_dim)));
    normalise(k, 1);
    std::vector<double> decay(static_cast<size_t>(n)), beta(decay);  // G, beta
    for (int t = 0; t < n; ++t) {
      const size_t at = size_t((begin + t) * d_.value_heads + head);
      const double step = -std::exp(double{s_.a_log[size_t(head)]}) *
                          std::log1p(std::exp(double{s_.a[at]} + s_.dt_bias[size_t(head)]));
      decay[size_t(t)] = (t > 0 ? decay[size_t(t - 1)] : 0) + step;
      beta[size_t(t)] = 1 / (1 + std::exp(-double{s_.b[at]}));
    }
    const Rows kk = products(k, k, false), kk_parts = products(k, k, true);
    const Rows qk = products(q, k, false), qk_parts = products(q, k, true);
    const Rows ks = products(k, state, false), ks_parts = products(k, parts, true);
    const Rows qs = products(q, state, false), qs_parts = products(q, parts, true);
    const Rows inverse = inverse_of(kk, decay, beta, n);

    Rows writes = zeros(d_.value_dim, n), write_parts = writes;
    const double last = decay[size_t(n - 1)];
    for (int c = 0; c < d_.value_dim; ++c) {
      std::vector<double>& w = writes[size_t(c)];
      std::vector<double> loose(static_cast<size_t>(n));
      for (int i = 0; i < n; ++i) {  // W = R - L W
        const size_t at = size_t(i);
        const double kept = beta[at] * std::exp(decay[at]);
        w[at] = beta[at] * v[at][size_t(c)] - kept * ks[at][size_t(c)];
        loose[at] = beta[at] * std::abs(v[at][size_t(c)]) + kept * ks_parts[at][size_t(c)];
        for (size_t j = 0; j < at; ++j) {
          const double factor = beta[at] * std::exp(decay[at] - decay[j]);
          w[at] -= factor * kk[at][j] * w[j];
          loose[at] += factor * kk_parts[at][j] * std::abs(w[j]);
        }
      }
      for (size_t i = 0; i < size_t(n); ++i) {
        double& sum = write_parts[size_t(c)][i];
        sum = std::abs(w[i]) + loose[i];
        for (size_t j = 0; j < i; ++j) sum += std::abs(inverse[i][j]) * loose[j];
      }
    }
    for (size_t i = 0; i < size_t(n); ++i) {
      std::vector<double> out(size_t(d_.value_dim)), loose(out);
      double squares = 0, loose_squares = 0;
      for (size_t c = 0; c < out.size(); ++c) {
        out[c] = std::exp(decay[i]) * qs[i][c];
        loose[c] = std::exp(decay[i]) * qs_parts[i][c];
        for (size_t j = 0; j <= i; ++j) {
          const double factor = std::exp(decay[i] - decay[j]);
          out[c] += factor * qk[i][j] * writes[c][j];
          loose[c] += factor * qk_parts[i][j] * write_parts[c][j];
        }
        squares += out[c] * out[c] / d_.value_dim;
        loose_squares += loose[c] * loose[c] / d_.value_dim;
      }
      const double rms = std::sqrt(squares + double{d_.eps});
      for (size_t c = 0; c < out.size(); ++c) {  // of the element, and of the norm over all
        of_[size_t((begin + int(i)) * d_.width() + head * d_.value_dim) + c] =
            (loose[c] + std::abs(out[c]) * std::sqrt(loose_squares) / rms) / rms;
      }
    }
    for (size_t c = 0; c < state.size(); ++c) {
      for (size_t e = 0; e < state[c].size(); ++e) {
        state[c][e] *= std::exp(last);
        parts[c][e] *= std::exp(last);
        for (size_t j = 0; j < size_t(n); ++j) {
          const double factor = std::exp(last - decay[j]);
          state[c][e] += factor * k[j][e] * writes[c][j];
          parts[c][e] += factor * std::abs(k[j][e]) * write_parts[c][j];
        }
      }
    }
  }

  // (I + L)^-1 by forward substitution.
  static Rows inverse_of(const Rows& kk, const std::vector<double>& decay,
                         const std::vector<double>& beta, int n) {
    Rows out = zeros(n, n);
    for (size_t i = 0; i < size_t(n); ++i) {
      out[i][i] = 1;
      for (size_t j = 0; j < i; ++j) {
        const double lower = beta[i] * std::exp(decay[i] - decay[j]) * kk[i][j];
        for (size_t c = 0; c <= j; ++c) out[i][c] -= lower * out[j][c];
      }
    }
    return out;
  }

  const Sequence& s_;
  const Dimensions d_;
  std::vector<double> of_;
};

// Prefill rounds operands to F16: on the way to o eight factors (q, S, mix, D, R, the inverse, keys
// twice), each by at most u = 2^-11, u / sqrt(3) in the mean: 1.6 u of the parts of o. With a
// factor of four for parts larger than o and six standard deviations for the worst of many elements
// that is below 64 u, times |norm silu(z)|. Where parts cancel further, u of their sum bounds it
// (Condition): of 73 sequences that went through an emulation of these roundings in NumPy five left
// the 64 u, and none came beyond 0.2 u of that sum.
class PrefillBound {
 public:
  explicit PrefillBound(const Sequence& s, double roundoffs = 4) : s_(s), roundoffs_(roundoffs) {}
  // Of output `element` of the whole sequence.
  double operator()(int64_t element, double found, double expected) const {
    const double z = s_.z[size_t(element)];
    const double gate =
        std::abs(s_.norm[size_t(element % s_.d.value_dim)] * z / (1 + std::exp(-z)));
    const double rounding = kBf16Spacing / 2 * std::abs(expected);
    const double usual = rounding + 16 * roundoffs_ * kF16Roundoff * gate;
    if (std::abs(found - expected) <= usual) return usual;
    // Costs as much as the oracle: only where it is asked for.
    std::call_once(is_made_, [this] { condition_.emplace(s_); });
    return std::max(usual, rounding + kF16Roundoff * gate * (*condition_)[element]);
  }

 private:
  const Sequence& s_;
  double roundoffs_;
  mutable std::once_flag is_made_;
  mutable std::optional<Condition> condition_;
};

// Over all elements the mean square is that of BF16 rounding, at most 2^-8 / sqrt(3), and of 4 u.
inline double prefill_rms_bound(double roundoffs = 4) {
  return std::hypot(0x1p-8 / std::sqrt(3), roundoffs * kF16Roundoff);
}

}  // namespace moray::check::delta
