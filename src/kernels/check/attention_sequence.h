// Attention for checks: a sequence's inputs and cache on either side, the oracle, runs by step and
// by block.
//
// The cache is NaN wherever no token has been and outputs are NaN before the call, so that a row
// too many and a row too few both show.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/kernels/check/device_array.h"
#include "src/kernels/check/products.h"
#include "src/kernels/check/random.h"
#include "src/kernels/cuda/attention.h"

namespace moray::check::attention {

struct Dimensions {
  int heads, kv_heads, head_dim, rotary_dim;
  bool has_gate;
  NormKind kind;
  float rope_scale = 1.1f, eps = 1e-6f;
};

// Tokens [0, end): projections of all, and the oracle's cache and outputs.
struct Sequence {
  Dimensions d;
  int end;
  std::vector<float> q_gate, k, v, q_norm, k_norm, inv_freq;
  std::vector<uint16_t> keys, values;  // [kv_head, end + kSpare, head_dim]
  std::vector<float> out;              // of tokens [known, end)
  int known;                           // cache rows below are random, not made from k and v

  static constexpr int kSpare = 3;
  int capacity() const { return end + kSpare; }
  int64_t query_width() const { return int64_t{d.heads} * d.head_dim * (d.has_gate ? 2 : 1); }
  int64_t kv_width() const { return int64_t{d.kv_heads} * d.head_dim; }
  int64_t width() const { return int64_t{d.heads} * d.head_dim; }
};

// Rows [0, known) of the cache are random, the others NaN; inputs are BF16 values if `as_bf16`.
inline Sequence make_sequence(Random& random, const Dimensions& d, int known, int tokens,
                              bool as_bf16) {
  Sequence s{};
  s.d = d;
  s.end = known + tokens;
  s.known = known;
  s.q_norm = random.normals(d.head_dim, 0.5f);
  s.k_norm = random.normals(d.head_dim, 0.5f);
  const auto inputs = [&](int64_t count) {
    return as_bf16 ? random.bf16_normals(count) : random.normals(count);
  };
  s.q_gate = inputs(tokens * s.query_width());
  s.k = inputs(tokens * s.kv_width());
  s.v = inputs(tokens * s.kv_width());
  for (int i = 0; i < d.rotary_dim / 2; ++i) {
    s.inv_freq.push_back(std::pow(1e7f, -2.0f * float(i) / float(d.rotary_dim)));
  }
  if (d.kind == NormKind::kPlain) {
    for (float& w : s.q_norm) w += 1;
    for (float& w : s.k_norm) w += 1;
  }
  const size_t rows = size_t(d.kv_heads) * size_t(s.capacity());
  s.keys.assign(rows * size_t(d.head_dim), 0xffff);
  s.values = s.keys;
  for (size_t row = 0; row < rows; ++row) {
    if (int(row % size_t(s.capacity())) >= known) continue;
    for (int i = 0; i < d.head_dim; ++i) {
      s.keys[row * size_t(d.head_dim) + size_t(i)] = float_to_bf16(random.normal());
      s.values[row * size_t(d.head_dim) + size_t(i)] = float_to_bf16(random.normal());
    }
  }
  return s;
}

inline void run_oracle(Sequence& s) {
  const int tokens = s.end - s.known;
  s.out.resize(size_t(tokens * s.width()));
  ref::attention({.q_gate = s.q_gate.data(),
                  .k = s.k.data(),
                  .v = s.v.data(),
                  .tokens = tokens,
                  .position = s.known,
                  .q_norm = s.q_norm.data(),
                  .k_norm = s.k_norm.data(),
                  .inv_freq = s.inv_freq.data(),
                  .rope_scale = s.d.rope_scale,
                  .heads = s.d.heads,
                  .kv_heads = s.d.kv_heads,
                  .head_dim = s.d.head_dim,
                  .rotary_dim = s.d.rotary_dim,
                  .has_gate = s.d.has_gate,
                  .eps = s.d.eps,
                  .norm_kind = s.d.kind,
                  .precision = Precision::kBfloat16,
                  .cache = {s.keys.data(), s.values.data(), s.capacity(), DType::kBF16},
                  .out = s.out.data(),
                  .workspace = {}});
}

// A sequence's cache and weights on the device, as they were before the oracle ran.
class DeviceSequence {
 public:
  DeviceSequence(const Site& site, const Sequence& s)
      : keys(upload(site, s.keys)),
        values(upload(site, s.values)),
        q_norm_(upload(site, s.q_norm)),
        k_norm_(upload(site, s.k_norm)),
        inv_freq_(upload(site, s.inv_freq)),
        capacity_(s.capacity()) {}
  cuda::KvCache cache() const { return {keys.data(), values.data(), nullptr, nullptr, capacity_}; }
  cuda::KvCache unpacked() const { return {}; }
  cuda::AttentionWeights weights() const {
    return {q_norm_.data(), k_norm_.data(), inv_freq_.data()};
  }

  DeviceArray<uint16_t> keys, values;

 private:
  DeviceArray<float> q_norm_, k_norm_, inv_freq_;
  int capacity_;
};

// What serves all steps of a stream.
struct StepBuffers {
  StepBuffers(const Site& site, const cuda::AttentionShape& shape)
      : partials(site, size_t(cuda::attention_step_workspace_bytes(shape, 16)) / 4),
        arrivals(upload(site, std::vector<unsigned>(size_t(cuda::attention_arrivals_bytes(shape)) /
                                                    sizeof(unsigned)))) {}
  DeviceArray<float> partials;
  DeviceArray<unsigned> arrivals;
};

// Runs tokens [known, end) in steps of `step`; their outputs in order.
template <typename OnDevice>
std::vector<uint16_t> run_steps(const Site& site, const cuda::AttentionKernels& kernels,
                                const Sequence& s, const OnDevice& on_device, int step) {
  StepBuffers buffers(site, kernels.shape);
  const auto q_gate = upload(site, s.q_gate), k = upload(site, s.k), v = upload(site, s.v);
  const DeviceArray<uint16_t> out(site, size_t((s.end - s.known) * s.width()));
  for (int position = s.known; position < s.end; position += step) {
    const int count = std::min(step, s.end - position), at = position - s.known;
    const auto where =
        upload(site, std::vector<cuda::Step>{{.position = position, .count = count, .tokens = {}}});
    cuda::attention_step(site.stream, kernels, count,
                         {.step = where.data(),
                          .q_gate = q_gate.data() + at * s.query_width(),
                          .k = k.data() + at * s.kv_width(),
                          .v = v.data() + at * s.kv_width(),
                          .weights = on_device.weights(),
                          .cache = on_device.cache(),
                          .partials = buffers.partials.data(),
                          .arrivals = buffers.arrivals.data(),
                          .out = out.data() + at * s.width()},
                         false);
    site.note(site.stream.synchronize());  // `where` goes
  }
  buffers.partials.read();  // the guard
  for (const unsigned count : buffers.arrivals.read()) {
    if (count == 0) continue;
    site.note(Status(StatusCode::kUnsupported, "left arrivals that were not zero"));
  }
  return out.read();
}

// Likewise by prefill, in blocks that end at the given positions.
template <typename OnDevice>
std::vector<uint16_t> run_blocks(const Site& site, const cuda::AttentionKernels& kernels,
                                 const Sequence& s, const OnDevice& on_device,
                                 const std::vector<int>& ends) {
  const auto q_gate = upload(site, bf16_of(s.q_gate)), k = upload(site, bf16_of(s.k)),
             v = upload(site, bf16_of(s.v));
  const DeviceArray<uint16_t> out(site, size_t((s.end - s.known) * s.width()));
  int position = s.known;
  for (int end : ends) {
    const int at = position - s.known;
    cuda::attention_prefill(site.stream, kernels,
                            {.q_gate = q_gate.data() + at * s.query_width(),
                             .k = k.data() + at * s.kv_width(),
                             .v = v.data() + at * s.kv_width(),
                             .weights = on_device.weights(),
                             .cache = on_device.cache(),
                             .unpacked = on_device.unpacked(),
                             .position = position,
                             .tokens = end - position,
                             .out = out.data() + at * s.width()});
    position = end;
  }
  q_gate.read();  // the guard
  return out.read();
}

// The output's own rounding leaves a root mean square of about 0.85 * 2^-9 of the values, a little
// more where few elements count; a query or key that lies on a border between two BF16 values may
// be rounded the other way, which moves single scores by a spacing of single terms. Prefill rounds
// the softmax weights to BF16 as well, which may double that.
inline double rms_bound(bool weights_round) {
  return 0x1p-9 * (weights_round ? 2 : 1.5);
}
// Of a single element: a spacing of the element and one of the values (of order 1) that were
// averaged.
inline double element_bound(double expected) {
  return 2 * kBf16Spacing * (std::abs(expected) + 1);
}
// Of a new key: a spacing of the larger of the two that a rotation mixes (of order 1, at most 8).
inline double key_bound(double expected) {
  return kBf16Spacing * std::abs(expected) + 8 * 0x1p-22;
}

}  // namespace moray::check::attention
