// Oracle of attention: norm, rotate, append, then a full softmax a query at a time, in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "src/base/check.h"
#include "src/kernels/ref/ref.h"

namespace moray::ref {

namespace {

float cache_load(const void* data, DType dtype, int64_t index) {
  return dtype == DType::kF32 ? static_cast<const float*>(data)[index]
                              : bf16_to_float(static_cast<const uint16_t*>(data)[index]);
}

void cache_store(void* data, DType dtype, int64_t index, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] = float_to_bf16(value);
  }
}

// The RMS-normed, rotated and rounded head x.
std::vector<float> prepare_head(const AttentionArgs& args, const float* x, const float* weight,
                                int64_t position) {
  std::vector<float> normed(static_cast<size_t>(args.head_dim));
  rms_norm({.x = x,
            .weight = weight,
            .rows = 1,
            .dim = args.head_dim,
            .eps = args.eps,
            .kind = args.norm_kind,
            .precision = Precision::kFloat32,
            .out = normed.data()});
  const int64_t half = args.rotary_dim / 2;
  std::vector<float> out(normed.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = round_to(args.precision, normed[i]);
  for (int64_t i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * args.inv_freq[i];
    const double cosine = std::cos(double{angle}) * args.rope_scale;
    const double sine = std::sin(double{angle}) * args.rope_scale;
    const double first = normed[size_t(i)], second = normed[size_t(i + half)];
    out[size_t(i)] = round_to(args.precision, first * cosine - second * sine);
    out[size_t(i + half)] = round_to(args.precision, second * cosine + first * sine);
  }
  return out;
}

void append(const AttentionArgs& args, int64_t t) {
  const int64_t position = args.position + t;
  for (int64_t head = 0; head < args.kv_heads; ++head) {
    const int64_t from = (t * args.kv_heads + head) * args.head_dim;
    const int64_t to = (head * args.cache.capacity + position) * args.head_dim;
    const auto key = prepare_head(args, args.k + from, args.k_norm, position);
    for (int64_t i = 0; i < args.head_dim; ++i) {
      cache_store(args.cache.keys, args.cache.dtype, to + i, key[size_t(i)]);
      cache_store(args.cache.values, args.cache.dtype, to + i,
                  round_to(args.precision, args.v[from + i]));
    }
  }
}

void attend(const AttentionArgs& args, int64_t t, int64_t head) {
  const int64_t dim = args.head_dim, position = args.position + t;
  const int64_t kv_head = head / (args.heads / args.kv_heads);
  const float* q_in = args.q_gate + (t * args.heads + head) * dim * (args.has_gate ? 2 : 1);
  const auto q = prepare_head(args, q_in, args.q_norm, position);
  const int64_t base = kv_head * args.cache.capacity * dim;
  const KvView& cache = args.cache;
  std::vector<double> p;
  for (int64_t j = 0; j <= position; ++j) {
    double score = 0;
    for (int64_t i = 0; i < dim; ++i) {
      score += double{q[size_t(i)]} * cache_load(cache.keys, cache.dtype, base + j * dim + i);
    }
    p.push_back(score / std::sqrt(double(dim)));
  }
  const double top = *std::max_element(p.begin(), p.end());
  double total = 0;
  for (double& value : p) total += value = std::exp(value - top);
  for (int64_t i = 0; i < dim; ++i) {
    double sum = 0;
    for (int64_t j = 0; j <= position; ++j) {
      sum += p[size_t(j)] * cache_load(cache.values, cache.dtype, base + j * dim + i);
    }
    const double gate = args.has_gate ? sigmoid(q_in[dim + i]) : 1.0;
    args.out[(t * args.heads + head) * dim + i] = round_to(args.precision, sum / total * gate);
  }
}

}  // namespace

void attention(const AttentionArgs& args) {
  CHECK(args.kv_heads > 0 && args.heads % args.kv_heads == 0, args.heads, args.kv_heads);
  CHECK(args.rotary_dim % 2 == 0 && args.rotary_dim <= args.head_dim, args.rotary_dim);
  CHECK(args.position + args.tokens <= args.cache.capacity, args.position, args.cache.capacity);
  for (int64_t t = 0; t < args.tokens; ++t) append(args, t);
  for (int64_t t = 0; t < args.tokens; ++t) {
    for (int64_t head = 0; head < args.heads; ++head) attend(args, t, head);
  }
}

}  // namespace moray::ref
