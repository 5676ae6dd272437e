// What stands between and after an expert's products: the SiLU product and the weighted sum.
#pragma once

#include <cstdint>

#include "src/kernels/cpu/generic/math.h"
#include "src/kernels/cpu/kernels.h"

namespace moray::cpu {
namespace {

template <class L>
void silu_product_rows(const SiluJob& job) {
  for (int64_t t = 0; t < job.tokens; ++t) {
    for_lanes<L>(job.rows, [&](int64_t i, int64_t count) {
      const auto gate = load_some<L>(job.gate + t * job.stride + i, count);
      const auto up = load_some<L>(job.up + t * job.stride + i, count);
      const auto value = L::mul(silu_of<L>(gate), up);
      const int64_t at = job.out_column + i;
      if (job.engine == Engine::kF32) {
        float* const row = static_cast<float*>(job.out) + t * job.out_stride;
        store_some<L>(row + at, job.round ? L::round_bf16(value) : value, count);
        return;
      }
      auto* const row = static_cast<uint16_t*>(job.out) + t * job.out_stride;
      if constexpr (L::kWidth == 16) {  // narrower levels have no BF16 products
        if (job.engine == Engine::kBf16Dealt) return L::store_bf16_dealt(row, at, value);
      }
      L::store_bf16_first(row + at, value, count);
    });
  }
}

template <class L>
void combine_rows(const CombineJob& job) {
  for (int64_t t = 0; t < job.tokens; ++t) {
    float* residual = job.residual + t * job.residual_stride;
    for_lanes<L>(job.rows, [&](int64_t i, int64_t count) {
      auto sum = load_some<L>(residual + i, count);
      for (int64_t slot = t * job.slots; slot < (t + 1) * job.slots; ++slot) {
        const float* y = job.y + job.index[slot] * job.rows;
        sum = L::fma(L::set(job.weights[slot]), load_some<L>(y + i, count), sum);
      }
      if (job.shared_y) {
        const auto y = load_some<L>(job.shared_y + t * job.rows + i, count);
        sum = L::fma(L::set(job.shared_weight[t]), y, sum);
      }
      store_some<L>(residual + i, job.round ? L::round_bf16(sum) : sum, count);
    });
  }
}

template <class L>
inline void fill_moe(Kernels& table) {
  table.silu_product = silu_product_rows<L>;
  table.combine = combine_rows<L>;
}

}  // namespace
}  // namespace moray::cpu
