// Rows and matrices of the GPU's formats in plain loops, for the stand-ins of kernels.
#pragma once

#include <cmath>
#include <vector>

#include "src/kernels/cuda/params.h"
#include "src/kernels/ref/ref.h"
#include "src/tensor/dtype.h"

namespace moray::cuda {

using HostRow = std::vector<float>;

inline float element(const Matrix& m, int n, int k) {
  const int64_t at = int64_t{n} * m.stride + k;
  if (m.format == Format::kBf16) return bf16_to_float(static_cast<const uint16_t*>(m.data)[at]);
  if (m.format == Format::kF32) return static_cast<const float*>(m.data)[at];
  const int scale_cols = (m.cols + 127) / 128;
  return f8e4m3_to_float(static_cast<const uint8_t*>(m.data)[at]) *
         m.scales[n / 128 * scale_cols + k / 128];
}

// Gate, up (part 0, 1) or down (2) of a record as a matrix.
inline Matrix record_matrix(const ExpertRecords& r, int expert, int part, int hidden) {
  const char* base = r.base + expert * r.record_bytes;
  const int offsets[] = {0, r.up, r.down};
  const int scales[] = {r.gate_scales, r.up_scales, r.down_scales};
  const bool is_down = part == 2;
  return {base + offsets[part],
          r.format == Format::kFp8 ? reinterpret_cast<const float*>(base + scales[part]) : nullptr,
          is_down ? hidden : r.width,
          is_down ? r.width : hidden,
          is_down ? r.down_stride : r.gate_stride,
          r.format};
}

inline HostRow product(const Matrix& m, const HostRow& x) {
  HostRow y(static_cast<size_t>(m.rows));
  for (int n = 0; n < m.rows; ++n) {
    double sum = 0;
    for (int k = 0; k < m.cols; ++k) sum += double(x[static_cast<size_t>(k)]) * element(m, n, k);
    y[static_cast<size_t>(n)] = static_cast<float>(sum);
  }
  return y;
}

inline HostRow from_bf16(const uint16_t* row, int64_t count) {
  HostRow values;
  for (int64_t i = 0; i < count; ++i) values.push_back(bf16_to_float(row[i]));
  return values;
}
inline void to_bf16(const HostRow& values, uint16_t* row) {
  for (size_t i = 0; i < values.size(); ++i) row[i] = float_to_bf16(values[i]);
}

// round(silu(gate x) * (up x)) of one expert.
inline HostRow inner_of(const ExpertRecords& records, int expert, const HostRow& x) {
  const auto hidden = static_cast<int>(x.size());
  const HostRow gate = product(record_matrix(records, expert, 0, hidden), x);
  HostRow up = product(record_matrix(records, expert, 1, hidden), x);
  for (size_t i = 0; i < up.size(); ++i) {
    up[i] = round_to_bf16(static_cast<float>(ref::silu(gate[i]) * up[i]));
  }
  return up;
}

// What the compilation's constants tell the kernels and parameters do not.
struct HostConstants {
  float eps = 1e-6f;
  bool zero_centred_norms = true;
  bool normalise_top_k = true;
  int hidden = 0, experts = 0, top_k = 0;
  int heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
  bool has_gate = true;
  float rope_scale = 1;
};
HostConstants& host_constants();

HostRow normed(const uint16_t* residual, const float* weight);

struct HostRoute {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
HostRoute choose_experts(const float* logits);

}  // namespace moray::cuda
