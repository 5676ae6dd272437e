// The delta net's inputs: causal convolution and SiLU of all channels, norms of the q and k heads,
// beta and the log decay. A block of tokens at a time; each token's arithmetic is its own.
#pragma once

#include <cstdint>

#include "src/kernels/cpu/generic/elementwise.h"
#include "src/kernels/cpu/generic/math.h"
#include "src/kernels/cpu/kernels.h"

namespace moray::cpu {
namespace {

// weight[j] = tap j of channels [channel, channel + count).
template <class L>
inline void load_taps(const float* weights, int64_t taps, int64_t channel, int64_t count,
                      typename L::F* weight) {
  if (taps == 4 && count == L::kWidth) {
    typename L::F four[4];
    L::load_groups_of_four(weights + channel * 4, four);
    for (int j = 0; j < 4; ++j) weight[j] = four[j];
    return;
  }
  for (int64_t j = 0; j < taps; ++j) {
    float lane[L::kWidth] = {};
    for (int64_t i = 0; i < count; ++i) lane[i] = weights[(channel + i) * taps + j];
    weight[j] = L::load(lane);
  }
}

// taps = 0 stands for a count known only at run time.
template <class L, int fixed_taps>
inline void convolve_channels(const GdnInputJob& job, int64_t channels) {
  const int64_t taps = fixed_taps ? fixed_taps : job.taps;
  for_lanes<L>(channels, [&](int64_t c, int64_t count) {
    typename L::F weight[kGdnTaps], x[kGdnTaps];
    load_taps<L>(job.conv_weight, taps, c, count, weight);
    for (int64_t j = 0; j < taps - 1; ++j) x[j + 1] = load_some<L>(job.rows[j] + c, count);
    for (int64_t t = 0; t < job.tokens; ++t) {
      for (int64_t j = 0; j < taps - 1; ++j) x[j] = x[j + 1];
      x[taps - 1] = load_some<L>(job.rows[taps - 1 + t] + c, count);
      typename L::F sum = L::mul(weight[0], x[0]);
      for (int64_t j = 1; j < taps; ++j) sum = L::fma(weight[j], x[j], sum);
      store_some<L>(job.mixed + t * channels + c, silu_of<L>(sum), count);
    }
  });
}

// x * scale / sqrt(sum x^2 + 1e-6), in place.
template <class L>
inline void normalise_head(float* x, int64_t dim, float scale) {
  const float root = __builtin_sqrtf(sum_of_squares<L>(x, dim) + 1e-6f);
  const auto factor = L::set(scale / root);
  for_lanes<L>(dim, [&](int64_t i, int64_t count) {
    store_some<L>(x + i, L::mul(load_some<L>(x + i, count), factor), count);
  });
}

template <class L>
inline void compute_gates(const GdnInputJob& job, int64_t t) {
  const int64_t heads = job.value_heads;
  for_lanes<L>(heads, [&](int64_t i, int64_t count) {
    const int64_t at = t * heads + i;
    store_some<L>(job.beta + at, sigmoid_of<L>(load_some<L>(job.b + at, count)), count);
    const auto step = softplus_of<L>(
        L::add(load_some<L>(job.a + at, count), load_some<L>(job.dt_bias + i, count)));
    const auto rate = exp_of<L>(load_some<L>(job.a_log + i, count));
    store_some<L>(job.g + at, L::negate(L::mul(rate, step)), count);
  });
}

template <class L>
void gdn_input(const GdnInputJob& job) {
  const int64_t keys = job.key_heads * job.key_dim;
  const int64_t channels = 2 * keys + job.value_heads * job.value_dim;
  if (job.taps == 4) {
    convolve_channels<L, 4>(job, channels);
  } else {
    convolve_channels<L, 0>(job, channels);
  }
  const float query_scale = 1.0f / __builtin_sqrtf(static_cast<float>(job.key_dim));
  for (int64_t t = 0; t < job.tokens; ++t) {
    float* const q = job.mixed + t * channels;
    for (int64_t head = 0; head < job.key_heads; ++head) {
      normalise_head<L>(q + head * job.key_dim, job.key_dim, query_scale);
      normalise_head<L>(q + keys + head * job.key_dim, job.key_dim, 1);
    }
    compute_gates<L>(job, t);
  }
}

}  // namespace
}  // namespace moray::cpu
