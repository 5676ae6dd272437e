// Attention over an FP8 cache: what is stored, and what is computed from it.
//
// The two are tested apart, because the outputs follow the stored codes, not the values they stand
// for: new rows against the oracle's BF16 rows within half a step of their codes, outputs against a
// full softmax in double over the rows read back.
#include "tests/gpu/attention_support.h"

namespace moray::attention {
namespace {

// The code nearest to value.
uint8_t nearest_code(float value) {
  int best = 0;
  for (int code = 0; code < 256; ++code) {
    const float candidate = f8e4m3_to_float(uint8_t(code));
    if (std::abs(candidate - value) < std::abs(f8e4m3_to_float(uint8_t(best)) - value)) best = code;
  }
  return uint8_t(best);
}

// A BF16 cache as codes and scales; rows from `known` on are NaN in both.
struct Fp8Rows {
  Fp8Rows(const Sequence& s, const std::vector<uint16_t>& from) {
    const size_t dim = size_t(s.d.head_dim), rows = from.size() / dim;
    codes.assign(from.size(), 0xff);
    scales.assign(rows, std::nanf("1"));
    for (size_t row = 0; row < rows; ++row) {
      if (int(row % size_t(s.capacity())) >= s.known) continue;
      float most = 0;
      for (size_t i = 0; i < dim; ++i) {
        most = std::max(most, std::abs(bf16_to_float(from[row * dim + i])));
      }
      scales[row] = most / 448;
      for (size_t i = 0; i < dim; ++i) {
        codes[row * dim + i] = nearest_code(bf16_to_float(from[row * dim + i]) / scales[row]);
      }
    }
  }
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

class Fp8Sequence {
 public:
  Fp8Sequence(gpu::Stream& stream, const Sequence& s)
      : Fp8Sequence(stream, s, Fp8Rows(s, s.keys), Fp8Rows(s, s.values)) {}
  cuda::KvCache cache() const {
    return {keys.data(), values.data(), key_scales.data(), value_scales.data(), capacity_};
  }
  cuda::KvCache unpacked() const {
    return {unpacked_keys_.data(), unpacked_values_.data(), nullptr, nullptr, capacity_};
  }
  cuda::AttentionWeights weights() const {
    return {q_norm_.data(), k_norm_.data(), inv_freq_.data()};
  }

  DeviceArray<uint8_t> keys, values;
  DeviceArray<float> key_scales, value_scales;

 private:
  Fp8Sequence(gpu::Stream& stream, const Sequence& s, const Fp8Rows& k, const Fp8Rows& v)
      : keys(stream, k.codes),
        values(stream, v.codes),
        key_scales(stream, k.scales),
        value_scales(stream, v.scales),
        unpacked_keys_(stream, s.keys.size()),
        unpacked_values_(stream, s.keys.size()),
        q_norm_(stream, s.q_norm),
        k_norm_(stream, s.k_norm),
        inv_freq_(stream, s.inv_freq),
        capacity_(s.capacity()) {}

  DeviceArray<uint16_t> unpacked_keys_, unpacked_values_;
  DeviceArray<float> q_norm_, k_norm_, inv_freq_;
  int capacity_;
};

std::vector<float> widen(const DeviceArray<uint8_t>& codes, const DeviceArray<float>& scales) {
  const std::vector<uint8_t> code = codes.read();
  const std::vector<float> scale = scales.read();
  std::vector<float> rows;
  for (size_t i = 0; i < code.size(); ++i) {
    rows.push_back(f8e4m3_to_float(code[i]) * scale[i / (code.size() / scale.size())]);
  }
  return rows;
}

// New rows within half a step of their codes (2^-4 of the value, or half the smallest code), and
// for keys the BF16 spacing that a border may cost.
void expect_rows(const Sequence& s, const std::vector<float>& found,
                 const std::vector<uint16_t>& expected, const std::vector<float>& scales) {
  const size_t dim = size_t(s.d.head_dim);
  int64_t wrong = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const int row = int(i / dim % size_t(s.capacity()));
    if (row >= s.end) {
      wrong += !std::isnan(found[i]);
    } else if (row >= s.known) {
      const double value = bf16_to_float(expected[i]);
      const double bound = std::max(std::abs(value) * 0x1p-4, scales[i / dim] * 0x1p-10) * 1.001 +
                           std::abs(value) * kBf16Spacing + 8 * 0x1p-22;
      wrong += !(std::abs(found[i] - value) <= bound);
    }
  }
  EXPECT_EQ(wrong, 0);
}

// Normed, rotated and rounded queries [token, head, dim]: what the oracle appends to a cache when
// it is told that they are keys.
std::vector<float> prepared_queries(const Sequence& s) {
  const int tokens = s.end - s.known, dim = s.d.head_dim;
  std::vector<float> heads, out(size_t(tokens * s.width())), cache(size_t(s.d.heads * s.end * dim)),
      unused(cache.size());
  for (int64_t head = 0; head < int64_t{tokens} * s.d.heads; ++head) {
    const float* const from = s.q_gate.data() + head * dim * (s.d.has_gate ? 2 : 1);
    heads.insert(heads.end(), from, from + dim);
  }
  ref::attention({.q_gate = heads.data(),
                  .k = heads.data(),
                  .v = heads.data(),
                  .tokens = tokens,
                  .position = s.known,
                  .q_norm = s.q_norm.data(),
                  .k_norm = s.q_norm.data(),
                  .inv_freq = s.inv_freq.data(),
                  .rope_scale = kRopeScale,
                  .heads = s.d.heads,
                  .kv_heads = s.d.heads,
                  .head_dim = dim,
                  .rotary_dim = s.d.rotary_dim,
                  .has_gate = false,
                  .eps = kEps,
                  .norm_kind = s.d.kind,
                  .precision = Precision::kBfloat16,
                  .cache = {cache.data(), unused.data(), s.end, DType::kF32},
                  .out = out.data(),
                  .workspace = {}});
  std::vector<float> queries;
  for (int t = 0; t < tokens; ++t) {
    for (int head = 0; head < s.d.heads; ++head) {
      const float* const from = cache.data() + (int64_t{head} * s.end + s.known + t) * dim;
      queries.insert(queries.end(), from, from + dim);
    }
  }
  return queries;
}

std::vector<float> attend(const Sequence& s, const std::vector<float>& keys,
                          const std::vector<float>& values) {
  const std::vector<float> queries = prepared_queries(s);
  const int64_t dim = s.d.head_dim, group = s.d.heads / s.d.kv_heads;
  std::vector<float> out;
  for (int64_t row = 0; row < int64_t(queries.size()) / dim; ++row) {
    const int64_t token = row / s.d.heads, head = row % s.d.heads;
    const float* const q = queries.data() + row * dim;
    const int64_t base = head / group * s.capacity() * dim;
    std::vector<double> weights, sums(size_t(dim), 0.0);
    double total = 0;
    for (int64_t j = 0; j <= s.known + token; ++j) {
      double score = 0;
      for (int64_t i = 0; i < dim; ++i) score += double{q[i]} * keys[size_t(base + j * dim + i)];
      const double weight = std::exp(score / std::sqrt(double(dim)));  // scores of order 10
      total += weight;
      for (int64_t i = 0; i < dim; ++i) {
        sums[size_t(i)] += weight * values[size_t(base + j * dim + i)];
      }
    }
    const float* const gate = s.q_gate.data() + row * dim * 2 + dim;
    for (int64_t i = 0; i < dim; ++i) {
      const double factor = s.d.has_gate ? ref::sigmoid(gate[i]) : 1.0;
      out.push_back(float(sums[size_t(i)] / total * factor));
    }
  }
  return out;
}

void expect_all(Sequence s, const Fp8Sequence& on_device, const std::vector<uint16_t>& out,
                bool weights_round) {
  const std::vector<float> keys = widen(on_device.keys, on_device.key_scales);
  const std::vector<float> values = widen(on_device.values, on_device.value_scales);
  expect_agreement(out, attend(s, keys, values), weights_round);
  run_oracle(s);
  expect_rows(s, keys, s.keys, on_device.key_scales.read());
  expect_rows(s, values, s.values, on_device.value_scales.read());
}

TEST(GpuAttentionFp8, StepAgreesWithTheCacheItKeeps) {
  MORAY_GPU_TEST();
  Random random;
  SCOPED_TRACE(random.trace());
  const auto stream = gpu::test_stream();
  ASSERT_NE(stream, nullptr);
  for (const Dimensions& d : kShapes) {
    if (!has_fp8_tests(d)) continue;
    const cuda::AttentionKernels* const kernels = kernels_of(d, true);
    ASSERT_NE(kernels, nullptr);
    for (const auto& [known, tokens] : {std::pair{0, 1}, {0, 3}, {127, 2}, {300, 16}, {1290, 1}}) {
      SCOPED_TRACE(trace(d) + " position " + std::to_string(known) + " tokens " +
                   std::to_string(tokens));
      const Sequence s = make_sequence(random, d, known, tokens, false);
      const Fp8Sequence together(*stream, s), alone(*stream, s);
      const auto out = run_steps(*stream, *kernels, s, together, tokens);
      expect_all(s, together, out, false);
      EXPECT_EQ(run_steps(*stream, *kernels, s, alone, 1), out);
      EXPECT_EQ(alone.keys.read(), together.keys.read());
      EXPECT_EQ(alone.values.read(), together.values.read());
    }
  }
}

TEST(GpuAttentionFp8, PrefillAgreesWithTheCacheItKeeps) {
  MORAY_GPU_TEST();
  Random random;
  SCOPED_TRACE(random.trace());
  const auto stream = gpu::test_stream();
  ASSERT_NE(stream, nullptr);
  for (const Dimensions& d : kShapes) {
    if (!has_fp8_tests(d)) continue;
    const cuda::AttentionKernels* const kernels = kernels_of(d, true);
    ASSERT_NE(kernels, nullptr);
    for (const auto& [known, tokens] : {std::pair{0, 1}, {0, 65}, {63, 2}, {200, 100}}) {
      SCOPED_TRACE(trace(d) + " position " + std::to_string(known) + " tokens " +
                   std::to_string(tokens));
      const Sequence s = make_sequence(random, d, known, tokens, true);
      const Fp8Sequence on_device(*stream, s);
      expect_all(s, on_device, run_blocks(*stream, *kernels, s, on_device, {s.end}), true);
    }
  }
}

}  // namespace
}  // namespace moray::attention
