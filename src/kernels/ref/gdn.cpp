// Oracle of gdn: the delta rule as a plain recurrence in double, token after token.
//
// It keeps the state of ops.h (S at the chunk's start plus the chunk's keys, writes and decays), so
// that oracle and kernel can hand a sequence to each other, but computes from a running S.
#include <algorithm>
#include <cmath>
#include <vector>

#include "src/base/check.h"
#include "src/kernels/ref/ref.h"

namespace moray::ref {

namespace {

using Doubles = std::vector<double>;

double softplus(double x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

// S at `position`, one value head, from what the state holds.
Doubles running_state(const GdnArgs& args, int64_t head) {
  const int64_t dk = args.key_dim, dv = args.value_dim;
  Doubles s(size_t(dk * dv), 0.0);
  if (args.position == 0) return s;
  const int64_t pending = (args.position - 1) % kDeltaChunk + 1;
  const int64_t key_head = head / (args.value_heads / args.key_heads);
  const float* keys = args.state.keys + key_head * kDeltaChunk * dk;
  const float* writes = args.state.writes + head * kDeltaChunk * dv;
  const float* decay = args.state.log_decay + head * kDeltaChunk;
  for (int64_t i = 0; i < dk * dv; ++i) s[size_t(i)] = args.state.s[head * dk * dv + i];
  for (int64_t j = 0; j < pending; ++j) {
    const double factor = std::exp(double{decay[j]} - (j ? decay[j - 1] : 0.0));
    for (int64_t r = 0; r < dk; ++r) {
      for (int64_t c = 0; c < dv; ++c) {
        double& cell = s[size_t(r * dv + c)];
        cell = factor * cell + double{keys[j * dk + r]} * writes[j * dv + c];
      }
    }
  }
  return s;
}

// silu of the causal convolution of all channels at one position, after storing its inputs.
Doubles convolve(const GdnArgs& args, int64_t position, const float* qkv, int64_t channels) {
  const int64_t taps = args.conv_taps;
  const int64_t row = position % kDeltaChunk + taps - 1;
  float* tail = args.state.conv_tail;
  if (position == 0) std::fill(tail, tail + (taps - 1) * channels, 0.0f);
  if (position > 0 && position % kDeltaChunk == 0) {
    std::copy(tail + kDeltaChunk * channels, tail + (kDeltaChunk + taps - 1) * channels, tail);
  }
  std::copy(qkv, qkv + channels, tail + row * channels);
  Doubles out(size_t(channels), 0.0);
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0;
    for (int64_t j = 0; j < taps; ++j) {
      sum += double{args.conv_weight[c * taps + j]} * tail[(row - (taps - 1) + j) * channels + c];
    }
    out[size_t(c)] = silu(sum);
  }
  return out;
}

Doubles normalised(const double* x, int64_t dim, double scale) {
  double squares = 0;
  for (int64_t i = 0; i < dim; ++i) squares += x[i] * x[i];
  Doubles out(x, x + dim);
  for (double& value : out) value *= scale / std::sqrt(squares + 1e-6);
  return out;
}

// One token of one value head: advances s, stores d and G, writes the gated, normed output.
void step(const GdnArgs& args, int64_t t, int64_t head, const Doubles& q, const Doubles& k,
          const double* v, Doubles& s) {
  const int64_t dk = args.key_dim, dv = args.value_dim, nv = args.value_heads;
  const int64_t j = (args.position + t) % kDeltaChunk;
  const double beta = sigmoid(args.b[t * nv + head]);
  const double g = -std::exp(double{args.a_log[head]}) *
                   softplus(double{args.a[t * nv + head]} + args.dt_bias[head]);
  float* decay = args.state.log_decay + head * kDeltaChunk;
  decay[j] = static_cast<float>((j ? decay[j - 1] : 0.0) + g);
  Doubles o(size_t(dv), 0.0);
  double squares = 0;
  for (int64_t c = 0; c < dv; ++c) {
    double predicted = 0;
    for (int64_t r = 0; r < dk; ++r) {
      s[size_t(r * dv + c)] *= std::exp(g);
      predicted += s[size_t(r * dv + c)] * k[size_t(r)];
    }
    const double d = beta * (v[c] - predicted);
    args.state.writes[(head * kDeltaChunk + j) * dv + c] = static_cast<float>(d);
    for (int64_t r = 0; r < dk; ++r) {
      s[size_t(r * dv + c)] += k[size_t(r)] * d;
      o[size_t(c)] += s[size_t(r * dv + c)] * q[size_t(r)];
    }
    squares += o[size_t(c)] * o[size_t(c)];
  }
  const double factor = 1 / std::sqrt(squares / double(dv) + args.eps);
  for (int64_t c = 0; c < dv; ++c) {
    const int64_t at = (t * nv + head) * dv + c;
    args.out[at] =
        round_to(args.precision, o[size_t(c)] * factor * args.norm_weight[c] * silu(args.z[at]));
  }
}

}  // namespace

void gdn(const GdnArgs& args) {
  const int64_t nk = args.key_heads, nv = args.value_heads, dk = args.key_dim, dv = args.value_dim;
  const int64_t channels = 2 * nk * dk + nv * dv;
  CHECK(nk > 0 && nv % nk == 0, nk, nv);
  std::vector<Doubles> states;
  for (int64_t head = 0; head < nv; ++head) states.push_back(running_state(args, head));
  for (int64_t t = 0; t < args.tokens; ++t) {
    const int64_t position = args.position + t, j = position % kDeltaChunk;
    if (j == 0) {
      for (int64_t head = 0; head < nv; ++head) {
        const Doubles& s = states[size_t(head)];
        std::transform(s.begin(), s.end(), args.state.s + head * dk * dv,
                       [](double value) { return static_cast<float>(value); });
      }
    }
    const Doubles c = convolve(args, position, args.qkv + t * channels, channels);
    for (int64_t key_head = 0; key_head < nk; ++key_head) {
      const Doubles q = normalised(&c[size_t(key_head * dk)], dk, 1 / std::sqrt(double(dk)));
      const Doubles k = normalised(&c[size_t((nk + key_head) * dk)], dk, 1);
      for (int64_t r = 0; r < dk; ++r) {
        args.state.keys[(key_head * kDeltaChunk + j) * dk + r] = static_cast<float>(k[size_t(r)]);
      }
      for (int64_t head = key_head * (nv / nk); head < (key_head + 1) * (nv / nk); ++head) {
        step(args, t, head, q, k, &c[size_t(2 * nk * dk + head * dv)], states[size_t(head)]);
      }
    }
  }
}

}  // namespace moray::ref
