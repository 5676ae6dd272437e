// Row-wise stages of prefill and its routing plan against plain code.
#include <algorithm>
#include <numeric>

#include "tests/gpu/prefill_model.h"

namespace moray::cuda {
namespace {

using gpu::DeviceArray;

class PrefillRows : public ::testing::Test {
 protected:
  Random random_;
  const std::vector<int> counts_ = {1, 7, 64, 65, 200};
};

TEST_F(PrefillRows, EmbeddingCopiesRowsAndTakesBadIdsAsTheFirst) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  for (const PrefillModel& model : prefill_models()) {
    SCOPED_TRACE(model.name);
    const int hidden = model.constants.hidden, vocab = model.constants.vocab_rows;
    const auto table = bf16_of(random_.normals(int64_t{vocab} * hidden));
    std::vector<int> tokens(77);
    for (int& token : tokens) token = static_cast<int>(random_.below(vocab));
    tokens[5] = -1;
    tokens[6] = vocab;
    const auto device_table = upload(*stream, table);
    const auto device_tokens = upload(*stream, tokens);
    const DeviceArray<uint16_t> out(*stream, tokens.size() * size_t(hidden));
    embed_rows(*stream, prefill_kernels(model),
               {.table = device_table.data(),
                .tokens = device_tokens.data(),
                .count = static_cast<int>(tokens.size()),
                .table_stride = hidden,
                .out = out.data()});
    tokens[5] = tokens[6] = 0;
    std::vector<uint16_t> expected;
    for (int token : tokens) {
      const auto row = table.begin() + int64_t{token} * hidden;
      expected.insert(expected.end(), row, row + hidden);
    }
    EXPECT_EQ(out.read(), expected);
  }
}

// FP32 statistics differ from the oracle's by about 1e-6, so that a rounding to BF16 may go to the
// neighbour: one spacing of the result, two where plain norms round twice.
TEST_F(PrefillRows, NormEqualsItsOracleWithinARounding) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  for (const PrefillModel& model : prefill_models()) {
    for (int count : counts_) {
      SCOPED_TRACE(model.name + " rows " + std::to_string(count));
      const int hidden = model.constants.hidden;
      const auto x = random_.bf16_normals(int64_t{count} * hidden);
      const auto weight = random_.normals(hidden, 0.3f);
      std::vector<float> expected(x.size());
      ref::rms_norm(
          {.x = x.data(),
           .weight = weight.data(),
           .rows = count,
           .dim = hidden,
           .eps = model.constants.norm_eps,
           .kind = model.constants.zero_centred_norms ? NormKind::kZeroCentred : NormKind::kPlain,
           .precision = Precision::kBfloat16,
           .out = expected.data()});
      const auto device_x = upload(*stream, bf16_of(x));
      const auto device_weight = upload(*stream, weight);
      const DeviceArray<uint16_t> out(*stream, x.size());
      norm_rows(*stream, prefill_kernels(model),
                {.x = device_x.data(),
                 .weight = device_weight.data(),
                 .count = count,
                 .out = out.data(),
                 .out_stride = hidden,
                 .quantised = {}});
      const auto found = floats_of(out.read());
      expect_close(found.data(), expected.data(), int64_t(x.size()), [&](int64_t i) {
        const int roundings = model.constants.zero_centred_norms ? 1 : 2;
        return roundings * kBf16Spacing * std::abs(expected[size_t(i)]);
      });
    }
  }
}

// A scale is (largest magnitude, at least 2^-100) / 448 and a code is the nearest E4M3 number: off
// by at most 2^-4 of the value, or half the spacing of subnormals, 2^-10 scales; FP32 rounding of
// the quotient adds less than 2^-22 of the value.
void expect_quantised(const std::vector<float>& values, int count, int cols,
                      const std::vector<unsigned char>& codes, const std::vector<float>& scales,
                      int scale_stride) {
  for (int r = 0; r < count; ++r) {
    for (int block = 0; block < cols / 128; ++block) {
      const float* v = values.data() + size_t(r) * cols + block * 128;
      float largest = 0;
      for (int i = 0; i < 128; ++i) largest = std::max(largest, std::abs(v[i]));
      const float scale = scales[size_t(block) * scale_stride + size_t(r)];
      ASSERT_FLOAT_EQ(scale, std::max(largest, 0x1p-100f) / 448) << r << ' ' << block;
      for (int i = 0; i < 128; ++i) {
        const double found =
            double{f8e4m3_to_float(codes[size_t(r) * cols + block * 128 + i])} * scale;
        const double bound = std::max(std::abs(v[i]) * (0x1p-4 + 0x1p-20), 0x1p-10 * scale);
        ASSERT_NEAR(found, v[i], bound) << r << ' ' << block << ' ' << i;
      }
    }
  }
}

TEST_F(PrefillRows, QuantisationRoundsToNearestPer128Columns) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  const PrefillModel model = prefill_models()[2];
  const PrefillKernels kernels = prefill_kernels(model);
  const int cols = model.constants.hidden, count = 133, stride = 136;
  auto x = random_.bf16_normals(int64_t{count} * cols, 3);
  for (int i = 0; i < 128; ++i) x[size_t(5 * cols + i)] = 0;
  for (int i = 0; i < 128; ++i) x[size_t(6 * cols + i)] *= 0x1p-110f;
  for (float& value : x) value = round_to_bf16(value);
  const auto device_x = upload(*stream, bf16_of(x));
  const DeviceArray<unsigned char> codes(*stream, x.size());
  const DeviceArray<float> scales(*stream, size_t(cols / 128) * stride);
  const QuantisedRows quantised{codes.data(), scales.data(), count, cols, stride};
  quantise_rows(*stream, kernels,
                {.x = device_x.data(), .x_stride = cols, .count = count, .quantised = quantised});
  expect_quantised(x, count, cols, codes.read(), scales.read(), stride);

  // The norm quantises what it rounds.
  const auto weight = upload(*stream, random_.normals(cols, 0.3f));
  const DeviceArray<uint16_t> rows(*stream, x.size());
  norm_rows(*stream, kernels,
            {.x = device_x.data(),
             .weight = weight.data(),
             .count = count,
             .out = rows.data(),
             .out_stride = cols,
             .quantised = quantised});
  const auto normed = floats_of(rows.read());
  const auto normed_codes = codes.read();
  const auto normed_scales = scales.read();
  expect_quantised(normed, count, cols, normed_codes, normed_scales, stride);

  // Sorted copies are copies.
  std::vector<int> sorted(size_t(count) * 4);
  std::iota(sorted.begin(), sorted.end(), 0);
  std::shuffle(sorted.begin(), sorted.end(), std::mt19937(std::random_device{}()));
  const auto device_sorted = upload(*stream, sorted);
  const int out_stride = 4 * count;
  const DeviceArray<unsigned char> out_codes(*stream, sorted.size() * size_t(cols));
  const DeviceArray<float> out_scales(*stream, size_t(cols / 128 * out_stride));
  gather_rows(*stream, kernels,
              {.x = quantised,
               .sorted = device_sorted.data(),
               .count = 4 * count,
               .top_k = 4,
               .out = {out_codes.data(), out_scales.data(), 4 * count, cols, out_stride}});
  const auto gathered = out_codes.read();
  const auto gathered_scales = out_scales.read();
  for (size_t r = 0; r < sorted.size(); ++r) {
    const size_t from = size_t(sorted[r]) / 4;
    ASSERT_TRUE(std::equal(gathered.begin() + int64_t(r) * cols,
                           gathered.begin() + int64_t(r + 1) * cols,
                           normed_codes.begin() + int64_t(from) * cols));
    for (int block = 0; block < cols / 128; ++block) {
      ASSERT_EQ(gathered_scales[size_t(block * out_stride) + r],
                normed_scales[size_t(block * stride) + from]);
    }
  }
}

// FP32 sums of top_k + 2 terms: that many roundings, each 2^-24 of the magnitudes' sum; then BF16.
TEST_F(PrefillRows, CombinationIsTheWeightedSumInSlotOrder) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  for (const PrefillModel& model : prefill_models()) {
    for (int count : counts_) {
      SCOPED_TRACE(model.name + " tokens " + std::to_string(count));
      const int hidden = model.constants.hidden, top_k = model.constants.top_k;
      const bool shared = model.constants.shared_dim > 0;
      const auto residual = random_.bf16_normals(int64_t{count} * hidden);
      const auto out = random_.bf16_normals(int64_t{count} * top_k * hidden);
      const auto shared_out = random_.bf16_normals(int64_t{count} * hidden);
      const auto weights = random_.normals(int64_t{count} * top_k);
      const auto shared_weights = random_.normals(count);
      const auto device_residual = upload(*stream, bf16_of(residual));
      const auto device_out = upload(*stream, bf16_of(out));
      const auto device_shared = upload(*stream, bf16_of(shared_out));
      const auto device_weights = upload(*stream, weights);
      const auto device_shared_weights = upload(*stream, shared_weights);
      combine_rows(*stream, prefill_kernels(model),
                   {.out = device_out.data(),
                    .shared_out = shared ? device_shared.data() : nullptr,
                    .expert_weights = device_weights.data(),
                    .shared_weight = device_shared_weights.data(),
                    .tokens = count,
                    .residual = device_residual.data()});
      const auto found = floats_of(device_residual.read());
      std::vector<float> expected(residual.size());
      std::vector<double> magnitude(residual.size());
      for (int t = 0; t < count; ++t) {
        for (int n = 0; n < hidden; ++n) {
          const size_t at = size_t(t) * hidden + n;
          double sum = residual[at], size = std::abs(sum);
          const auto add = [&](double term) {
            sum += term;
            size += std::abs(term);
          };
          for (int i = 0; i < top_k; ++i) {
            const size_t pair = size_t(t) * top_k + i;
            add(double{weights[pair]} * out[pair * hidden + n]);
          }
          if (shared) add(double{shared_weights[size_t(t)]} * shared_out[at]);
          expected[at] = static_cast<float>(sum);
          magnitude[at] = size;
        }
      }
      expect_close(found.data(), expected.data(), int64_t(found.size()), [&](int64_t i) {
        return (top_k + 3) * kF32Epsilon * magnitude[size_t(i)] +
               kBf16Spacing / 2 * std::abs(expected[size_t(i)]);
      });
    }
  }
}

// Logits with ties, and `hot`: every token's first choice is one expert.
std::vector<float> route_logits(Random& random, int tokens, int experts, bool hot) {
  auto logits = random.normals(int64_t{tokens} * experts, 2);
  for (float& value : logits) value = std::round(value * 8) / 8;
  for (int t = 0; t < tokens; ++t) {
    logits[size_t(t) * experts + size_t(experts - 1)] = hot ? 100 : -100;
  }
  return logits;
}

// exp and the sums differ from the oracle's by a few 2^-23; softmax divides two such.
TEST_F(PrefillRows, RoutingEqualsItsOracleAndThePlanSortsByExpert) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  for (const PrefillModel& model : prefill_models()) {
    const PrefillShape shape = shape_of(model.constants);
    const int experts = shape.experts, top_k = shape.top_k;
    for (int tokens : {1, 63, 64, 65, 500, 1500}) {
      const bool hot = tokens % 2 == 1;
      const int tile_rows = tokens % 3 == 0 ? 32 : tokens % 3 == 1 ? 64 : 128;
      SCOPED_TRACE(model.name + " tokens " + std::to_string(tokens));
      const auto logits = route_logits(random_, tokens, experts, hot);
      const auto shared = random_.normals(tokens);
      const auto device_logits = upload(*stream, logits);
      const auto device_shared = upload(*stream, shared);
      const DevicePlan plan(*stream, shape, tokens, tile_rows);
      route_rows(*stream, prefill_kernels(model),
                 {.logits = device_logits.data(),
                  .shared_logits = shape.shared_dim > 0 ? device_shared.data() : nullptr,
                  .logits_stride = experts,
                  .shared_stride = 1,
                  .tokens = tokens,
                  .plan = plan.plan()});
      const int pairs = tokens * top_k;
      const auto ids = plan.read(plan.plan().expert_ids, pairs);
      const auto weights = plan.read(plan.plan().expert_weights, pairs);
      for (int t = 0; t < tokens; ++t) {
        const float* row = logits.data() + size_t(t) * experts;
        std::vector<int> order(static_cast<size_t>(experts));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
        double total = 0;
        const int summed = model.constants.normalise_top_k ? top_k : experts;
        for (int i = 0; i < summed; ++i)
          total += std::exp(double{row[order[size_t(i)]]} - row[order[0]]);
        for (int i = 0; i < top_k; ++i) {
          const size_t pair = size_t(t) * top_k + size_t(i);
          ASSERT_EQ(ids[pair], order[size_t(i)]) << t << ' ' << i;
          const double expected = std::exp(double{row[order[size_t(i)]]} - row[order[0]]) / total;
          ASSERT_NEAR(weights[pair], expected, 0x1p-20 * expected + 0x1p-126) << t << ' ' << i;
        }
      }
      if (shape.shared_dim > 0) {
        const auto found = plan.read(plan.plan().shared_weight, tokens);
        for (int t = 0; t < tokens; ++t) {
          ASSERT_NEAR(found[size_t(t)], ref::sigmoid(shared[size_t(t)]), 0x1p-20);
        }
      }

      std::vector<int> order(static_cast<size_t>(pairs));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return ids[size_t(a)] < ids[size_t(b)]; });
      EXPECT_EQ(plan.read(plan.plan().sorted, pairs), order);
      const auto row_of = plan.read(plan.plan().row_of, pairs);
      for (int r = 0; r < pairs; ++r) ASSERT_EQ(row_of[size_t(order[size_t(r)])], r);
      const int tile_count = plan.read(plan.plan().tile_count, 1)[0];
      int next = 0;
      ExpertTile last{-1, 0, 0};
      for (const ExpertTile& tile : plan.read(plan.plan().tiles, tile_count)) {
        ASSERT_EQ(tile.first_row, next);
        ASSERT_GE(tile.rows, 1);
        ASSERT_LE(tile.rows, tile_rows);
        for (int r = 0; r < tile.rows; ++r) {
          ASSERT_EQ(ids[size_t(order[size_t(next + r)])], tile.expert);
        }
        if (tile.expert == last.expert) {  // only an expert's last tile is short
          ASSERT_EQ(last.rows, tile_rows);
        }
        last = tile;
        next += tile.rows;
      }
      EXPECT_EQ(next, pairs);
    }
  }
}

}  // namespace
}  // namespace moray::cuda
