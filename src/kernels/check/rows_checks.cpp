// Checks of a block's row-wise stages and of its routing plan.
#include <numeric>

#include "src/kernels/check/checks.h"
#include "src/kernels/check/device_plan.h"
#include "src/kernels/check/routing.h"
#include "src/kernels/check/weights.h"

namespace moray::check {
namespace {

const std::vector<int> kFew = {70};
const std::vector<int> kMany = {1, 7, 64, 65, 200};

// A scale is (largest magnitude, at least 2^-100) / 448 and a code is the nearest E4M3 number: off
// by at most 2^-4 of the value, or half the spacing of subnormals, 2^-10 scales; FP32 rounding of
// the quotient adds less than 2^-20 of the value.
void compare_quantised(Checker& checker, std::string_view kernel, const std::vector<float>& values,
                       int cols, const std::vector<uint8_t>& codes,
                       const std::vector<float>& scales, int stride) {
  const int blocks = cols / int(kSlice);
  const auto count = int64_t(values.size()) / kSlice;
  checker.compare(kernel, "128 columns", count, kSlice, [&](int64_t at, Worst& w) {
    const int64_t row = at / blocks, block = at % blocks;
    const float* const v = values.data() + at * kSlice;
    float largest = 0x1p-100f;
    for (int64_t i = 0; i < kSlice; ++i) largest = std::max(largest, std::abs(v[i]));
    const double scale = scales[size_t(block * stride + row)];
    w.take(scale * 448, largest, 8 * kF32Epsilon * largest);
    for (int64_t i = 0; i < kSlice; ++i) {
      w.take(e4m3_value(codes[size_t(at * kSlice + i)]) * scale, v[i],
             std::max(std::abs(v[i]) * (0x1p-4 + 0x1p-20), 0x1p-10 * scale));
    }
  });
}

}  // namespace

void check_embed_rows(Checker& checker, const Subject& subject) {
  const int hidden = subject.constants.hidden, vocab = std::min(subject.constants.vocab_rows, 320);
  const OwnedWeights table = random_weights(checker.random(), DType::kBF16, vocab, hidden);
  const DeviceMatrix matrix(checker.site(), table.view);
  for (const int count : checker.sizes(kFew, kMany)) {
    std::vector<int> tokens(static_cast<size_t>(count));
    for (int& token : tokens) token = static_cast<int>(checker.random().below(vocab));
    const auto device_tokens = upload(checker.site(), tokens);
    const DeviceArray<uint16_t> out(checker.site(), size_t(count) * size_t(hidden));
    cuda::embed_rows(checker.stream(), subject.prefill,
                     {.table = static_cast<const cuda::Bf16*>(matrix.matrix().data),
                      .tokens = device_tokens.data(),
                      .count = count,
                      .table_stride = matrix.matrix().stride,
                      .out = out.data()});
    const auto found = floats_of(out.read());
    checker.compare("embed_rows", "a row", int64_t{count} * hidden, 1, [&](int64_t i, Worst& w) {
      w.take_equal(found[size_t(i)],
                   ref::weight_at(table.view, tokens[size_t(i / hidden)], i % hidden));
    });
  }
}

void check_norm_rows(Checker& checker, const Subject& subject) {
  const cuda::Constants& c = subject.constants;
  for (const int count : checker.sizes(kFew, kMany)) {
    const auto x = checker.random().bf16_normals(int64_t{count} * c.hidden);
    const auto weight = checker.random().normals(c.hidden, 0.3f);
    const auto expected = rms_normed(c, x, weight);
    const auto device_x = upload(checker.site(), bf16_of(x));
    const auto device_weight = upload(checker.site(), weight);
    const DeviceArray<uint16_t> out(checker.site(), x.size());
    cuda::norm_rows(checker.stream(), subject.prefill,
                    {.x = device_x.data(),
                     .weight = device_weight.data(),
                     .count = count,
                     .out = out.data(),
                     .out_stride = c.hidden,
                     .quantised = {}});
    const auto found = floats_of(out.read());
    checker.compare("norm_rows", "a row", int64_t(x.size()), 1, [&](int64_t i, Worst& w) {
      w.take(found[size_t(i)], expected[size_t(i)], norm_bound(expected[size_t(i)]));
    });
  }
}

// Rows quantised alone, by the norm that made them, and copied in an order.
void check_quantised_rows(Checker& checker, const Subject& subject) {
  const Site& site = checker.site();
  const int cols = subject.constants.hidden, top_k = subject.constants.top_k;
  for (const int count : checker.sizes(kFew, kMany)) {
    const int stride = (count + 3) / 4 * 4;
    const auto x = checker.random().bf16_normals(int64_t{count} * cols, 3);
    const auto device_x = upload(site, bf16_of(x));
    const DeviceArray<uint8_t> codes(site, x.size());
    const DeviceArray<float> scales(site, size_t(cols / kSlice * stride));
    const cuda::QuantisedRows quantised{codes.data(), scales.data(), count, cols, stride};
    cuda::quantise_rows(
        checker.stream(), subject.prefill,
        {.x = device_x.data(), .x_stride = cols, .count = count, .quantised = quantised});
    compare_quantised(checker, "quantise_rows", x, cols, codes.read(), scales.read(), stride);

    const auto weight = upload(site, checker.random().normals(cols, 0.3f));
    const DeviceArray<uint16_t> rows(site, x.size());
    cuda::norm_rows(checker.stream(), subject.prefill,
                    {.x = device_x.data(),
                     .weight = weight.data(),
                     .count = count,
                     .out = rows.data(),
                     .out_stride = cols,
                     .quantised = quantised});
    const auto normed_codes = codes.read();
    const auto normed_scales = scales.read();
    compare_quantised(checker, "norm_rows (codes)", floats_of(rows.read()), cols, normed_codes,
                      normed_scales, stride);

    const int pairs = count * top_k;
    std::vector<int> sorted(static_cast<size_t>(pairs));
    std::iota(sorted.begin(), sorted.end(), 0);
    for (size_t i = sorted.size(); i > 1; --i) {
      std::swap(sorted[i - 1], sorted[size_t(checker.random().below(int64_t(i)))]);
    }
    const auto device_sorted = upload(site, sorted);
    const DeviceArray<uint8_t> out_codes(site, size_t(pairs) * size_t(cols));
    const DeviceArray<float> out_scales(site, size_t(cols / kSlice * pairs));
    cuda::gather_rows(checker.stream(), subject.prefill,
                      {.x = quantised,
                       .sorted = device_sorted.data(),
                       .count = pairs,
                       .top_k = top_k,
                       .out = {out_codes.data(), out_scales.data(), pairs, cols, pairs}});
    const auto gathered = out_codes.read();
    const auto gathered_scales = out_scales.read();
    checker.compare("gather_rows", "a sorted row", pairs, cols, [&](int64_t r, Worst& w) {
      const int64_t from = sorted[size_t(r)] / top_k;
      for (int64_t i = 0; i < cols; ++i) {
        w.take_equal(gathered[size_t(r * cols + i)], normed_codes[size_t(from * cols + i)]);
      }
      for (int64_t s = 0; s < cols / kSlice; ++s) {
        w.take_equal(gathered_scales[size_t(s * pairs + r)],
                     normed_scales[size_t(s * stride + from)]);
      }
    });
  }
}

// FP32 sums of top_k + 2 terms: that many roundings, each 2^-24 of the magnitudes' sum; then BF16.
void check_combine_rows(Checker& checker, const Subject& subject) {
  const cuda::Constants& c = subject.constants;
  Random& random = checker.random();
  const Site& site = checker.site();
  for (const int count : checker.sizes(kFew, kMany)) {
    const bool has_shared = c.shared_dim > 0;
    const auto residual = random.bf16_normals(int64_t{count} * c.hidden);
    const auto out = random.bf16_normals(int64_t{count} * c.top_k * c.hidden);
    const auto shared_out = random.bf16_normals(int64_t{count} * c.hidden);
    const auto weights = random.normals(int64_t{count} * c.top_k);
    const auto shared_weights = random.normals(count);
    const auto device_residual = upload(site, bf16_of(residual));
    const auto device_out = upload(site, bf16_of(out));
    const auto device_shared = upload(site, bf16_of(shared_out));
    const auto device_weights = upload(site, weights);
    const auto device_shared_weights = upload(site, shared_weights);
    cuda::combine_rows(checker.stream(), subject.prefill,
                       {.out = device_out.data(),
                        .shared_out = has_shared ? device_shared.data() : nullptr,
                        .expert_weights = device_weights.data(),
                        .shared_weight = device_shared_weights.data(),
                        .tokens = count,
                        .residual = device_residual.data()});
    const auto found = floats_of(device_residual.read());
    checker.compare("combine_rows", "the residual", int64_t(found.size()), c.top_k + 1,
                    [&](int64_t i, Worst& w) {
                      const int64_t t = i / c.hidden, n = i % c.hidden;
                      double sum = residual[size_t(i)], magnitude = std::abs(sum);
                      const auto add = [&](double term) {
                        sum += term;
                        magnitude += std::abs(term);
                      };
                      for (int64_t pair = t * c.top_k; pair < (t + 1) * c.top_k; ++pair) {
                        add(double{weights[size_t(pair)]} * out[size_t(pair * c.hidden + n)]);
                      }
                      if (has_shared)
                        add(double{shared_weights[size_t(t)]} * shared_out[size_t(i)]);
                      const double error = (c.top_k + 3) * kF32Epsilon * magnitude;
                      w.take(found[size_t(i)], sum, error + bf16_rounding(sum, error));
                    });
  }
}

// Ties among the logits; every token's first choice is one expert. The plan sorts by expert, then
// token, and cuts each expert's rows into tiles of which only the last is short.
void check_route_rows(Checker& checker, const Subject& subject) {
  const cuda::Constants& c = subject.constants;
  for (const int tokens : checker.sizes({70}, {1, 63, 64, 65, 500})) {
    for (const int tile_rows : checker.sizes({64}, {32, 64, 128})) {
      auto logits = checker.random().normals(int64_t{tokens} * c.experts, 2);
      for (float& value : logits) value = std::round(value * 8) / 8;
      for (int t = 0; t < tokens; ++t) logits[size_t(t) * size_t(c.experts)] = 30;
      const auto shared = checker.random().normals(tokens);
      const auto device_logits = upload(checker.site(), logits);
      const auto device_shared = upload(checker.site(), shared);
      const DevicePlan plan(checker.site(), subject.prefill.shape, tokens, tile_rows);
      cuda::route_rows(checker.stream(), subject.prefill,
                       {.logits = device_logits.data(),
                        .shared_logits = c.shared_dim > 0 ? device_shared.data() : nullptr,
                        .logits_stride = c.experts,
                        .shared_stride = 1,
                        .tokens = tokens,
                        .plan = plan.plan()});
      const int pairs = tokens * c.top_k;
      const auto ids = plan.read(plan.plan().expert_ids, pairs);
      const auto weights = plan.read(plan.plan().expert_weights, pairs);
      checker.compare("route_rows", "the choice", tokens, c.experts, [&](int64_t t, Worst& w) {
        const Choice choice = choose(c, logits.data() + t * c.experts);
        for (int64_t i = 0; i < c.top_k; ++i) {
          const double weight = choice.weights[size_t(i)];
          w.take_equal(ids[size_t(t * c.top_k + i)], choice.ids[size_t(i)]);
          w.take(weights[size_t(t * c.top_k + i)], weight, kSoftmaxError * weight + 0x1p-126);
        }
      });
      if (c.shared_dim > 0) {
        const auto found = plan.read(plan.plan().shared_weight, tokens);
        checker.compare("route_rows", "the shared weight", tokens, 1, [&](int64_t t, Worst& w) {
          w.take(found[size_t(t)], ref::sigmoid(shared[size_t(t)]), 0x1p-20);
        });
      }
      std::vector<int> order(static_cast<size_t>(pairs));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return ids[size_t(a)] < ids[size_t(b)]; });
      const auto sorted = plan.read(plan.plan().sorted, pairs);
      const auto row_of = plan.read(plan.plan().row_of, pairs);
      checker.compare("place_rows", "the order", pairs, 1, [&](int64_t r, Worst& w) {
        w.take_equal(sorted[size_t(r)], order[size_t(r)]);
        w.take_equal(row_of[size_t(order[size_t(r)])], double(r));
      });
      const int tile_count = plan.read(plan.plan().tile_count, 1)[0];
      std::vector<cuda::ExpertTile> expected;
      for (int first = 0; first < pairs;) {
        const int expert = ids[size_t(order[size_t(first)])];
        int rows = 0;
        while (first + rows < pairs && rows < tile_rows &&
               ids[size_t(order[size_t(first + rows)])] == expert) {
          ++rows;
        }
        expected.push_back({expert, first, rows});
        first += rows;
      }
      const auto tiles = plan.read(plan.plan().tiles, int64_t(expected.size()));
      checker.compare("plan_tiles", "the tiles", int64_t(expected.size()), 1,
                      [&](int64_t i, Worst& w) {
                        const cuda::ExpertTile& tile = tiles[size_t(i)];
                        const cuda::ExpertTile& wanted = expected[size_t(i)];
                        w.take_equal(tile_count, double(expected.size()));
                        w.take_equal(tile.expert, wanted.expert);
                        w.take_equal(tile.first_row, wanted.first_row);
                        w.take_equal(tile.rows, wanted.rows);
                      });
    }
  }
}

}  // namespace moray::check
