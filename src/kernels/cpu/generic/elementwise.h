// Norms, widening, packing and the element-wise functions, a row at a time.
#pragma once

#include <cstdint>
#include <cstring>

#include "src/kernels/cpu/generic/math.h"
#include "src/kernels/cpu/kernels.h"

namespace moray::cpu {
namespace {

// Sum of squares: lane i adds elements i, i + width, ...; then the lanes' tree.
template <class L>
inline float sum_of_squares(const float* x, int64_t dim) {
  typename L::F sum = L::zero();
  for_lanes<L>(dim, [&](int64_t i, int64_t count) {
    const typename L::F value = load_some<L>(x + i, count);
    sum = L::fma(value, value, sum);
  });
  return L::sum(sum);
}

template <class L>
void rms_norm_rows(const NormJob& job) {
  for (int64_t row = 0; row < job.rows; ++row) {
    const float* x = job.x + row * job.dim;
    float* out = job.out + row * job.dim;
    const float mean = sum_of_squares<L>(x, job.dim) / static_cast<float>(job.dim);
    const auto factor = L::set(1.0f / __builtin_sqrtf(mean + job.eps));
    for_lanes<L>(job.dim, [&](int64_t i, int64_t count) {
      auto value = L::mul(load_some<L>(x + i, count), factor);
      auto weight = load_some<L>(job.weight + i, count);
      if (job.zero_centred) {
        weight = L::add(weight, L::set(1.0f));
      } else if (job.round) {
        value = L::round_bf16(value);
      }
      value = L::mul(value, weight);
      store_some<L>(out + i, job.round ? L::round_bf16(value) : value, count);
    });
  }
}

template <class L>
void pack_f32_row(const float* x, int64_t k, float* out, int64_t padded) {
  std::memcpy(out, x, static_cast<size_t>(k) * sizeof(float));
  std::memset(out + k, 0, static_cast<size_t>(padded - k) * sizeof(float));
}

template <class L>
void pack_bf16_row(const float* x, int64_t k, uint16_t* out, int64_t padded) {
  for_lanes<L>(k, [&](int64_t i, int64_t count) {
    L::store_bf16_first(out + i, load_some<L>(x + i, count), count);
  });
  std::memset(out + k, 0, static_cast<size_t>(padded - k) * sizeof(uint16_t));
}

// `count` unscaled weights to floats; FP8 is not offered, since no table of ours is stored so.
template <class L>
void widen_weights(const void* from, int weight_kind, int64_t count, float* out) {
  const auto* bytes = static_cast<const char*>(from);
  const int64_t size = weight_kind == kWeightF32 ? 4 : 2;
  for_lanes<L>(count, [&](int64_t i, int64_t n) {
    char copy[4 * L::kWidth] = {};
    const char* at = bytes + i * size;
    if (n < L::kWidth) {
      std::memcpy(copy, at, static_cast<size_t>(n * size));
      at = copy;
    }
    typename L::F value;
    if (weight_kind == kWeightF32) {
      value = L::load(reinterpret_cast<const float*>(at));
    } else {
      value = weight_kind == kWeightF16 ? L::load_f16(at) : L::load_bf16(at);
    }
    store_some<L>(out + i, value, n);
  });
}

template <class L, typename L::F (*function)(typename L::F)>
void map(const float* in, int64_t count, float* out) {
  for_lanes<L>(count, [&](int64_t i, int64_t n) {
    store_some<L>(out + i, function(load_some<L>(in + i, n)), n);
  });
}

template <class L>
inline void fill_elementwise(Kernels& table) {
  table.pack_f32 = pack_f32_row<L>;
  table.pack_bf16 = pack_bf16_row<L>;
  table.widen = widen_weights<L>;
  table.rms_norm = rms_norm_rows<L>;
  table.exp = map<L, exp_of<L>>;
  table.sigmoid = map<L, sigmoid_of<L>>;
  table.silu = map<L, silu_of<L>>;
  table.softplus = map<L, softplus_of<L>>;
}

}  // namespace
}  // namespace moray::cpu
