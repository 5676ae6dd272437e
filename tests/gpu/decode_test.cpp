// The decode step's matrix products against their oracles, a token's bits against the number of
// tokens, and the greedy choice. Inputs, weights and poison are fresh in every run.
#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/gpu/decode_model.h"

namespace moray::cuda {
namespace {

using gpu::DeviceArray;

class Decode : public ::testing::Test {
 protected:
  Random random_;
};

std::vector<float> oracle_norm(const LayerCase& c) {
  std::vector<float> out(c.residual.size());
  ref::rms_norm(
      {.x = c.residual.data(),
       .weight = c.norm.data(),
       .rows = kStepTokensMax,
       .dim = c.shape.hidden,
       .eps = c.model.constants.norm_eps,
       .kind = c.model.constants.zero_centred_norms ? NormKind::kZeroCentred : NormKind::kPlain,
       .precision = Precision::kBfloat16,
       .out = out.data()});
  return out;
}

// The statistics err by some 2^-22, so one value in 2^13 falls on the other side of a rounding
// boundary (with plain norms, of either rounding), one spacing apart; 1 in 64 is never.
void expect_normed(const LayerCase& c, const LayerRun& run, int tokens) {
  const auto expected = oracle_norm(c);
  int64_t unequal = 0;
  expect_close(run.x.data(), expected.data(), int64_t{tokens} * c.shape.hidden,
               [&](int64_t i) { return 2 * kBf16Spacing * std::abs(expected[size_t(i)]); });
  for (size_t i = 0; i < run.x.size(); ++i) unequal += run.x[i] != expected[i];
  EXPECT_LE(unequal, int64_t(run.x.size()) / 64 + 2);
}

// Logits of the router by products of the x found, and the choice by the logits found.
void expect_routed(const LayerCase& c, const LayerRun& run, int tokens) {
  const int experts = c.shape.experts, top_k = c.shape.top_k;
  for (int t = 0; t < tokens; ++t) {
    const float* const x = c.token(run.x, t).data();
    const float* const logits = run.logits.data() + t * experts;
    double all = 0, chosen = 0;
    for (int e = 0; e < experts; ++e) {
      const Product sum = product(c.router, e, x);
      ASSERT_NEAR(logits[e], sum.value, sum.error()) << "token " << t << " expert " << e;
    }
    std::vector<int> order(static_cast<size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return logits[a] > logits[b]; });
    const auto raised = [&](int e) { return std::exp(double{logits[e]} - logits[order[0]]); };
    for (int e = 0; e < experts; ++e) all += raised(e);
    for (int i = 0; i < top_k; ++i) chosen += raised(order[size_t(i)]);
    const double divisor = c.model.constants.normalise_top_k ? chosen : all;
    for (int i = 0; i < top_k; ++i) {
      const auto at = size_t(t * top_k + i);
      ASSERT_EQ(run.ids[at], order[size_t(i)]) << "token " << t << " slot " << i;
      const double weight = raised(order[size_t(i)]) / divisor;
      ASSERT_NEAR(run.weights[at], weight, 0x1p-18 * weight);  // exp of up to some tens
    }
    if (c.shape.shared_dim == 0) continue;
    const Product sum = product(c.shared_gate, 0, x);
    ASSERT_NEAR(run.shared_weight[size_t(t)], ref::sigmoid(sum.value), sum.error() + 0x1p-20);
  }
}

// inner by the x found; residual by the inner found. silu' is at most 1.1.
void expect_computed(const LayerCase& c, const LayerRun& run, int tokens) {
  const int hidden = c.shape.hidden, top_k = c.shape.top_k;
  const int stride = inner_stride(c.shape.expert_dim, c.shape.shared_dim);
  for (int t = 0; t < tokens; ++t) {
    const float* const x = c.token(run.x, t).data();
    std::vector<double> sum(size_t(hidden), 0), error(size_t(hidden), 0);
    for (int i = 0; i < hidden; ++i) sum[size_t(i)] = c.token(c.residual, t)[size_t(i)];
    for (int slot = 0; slot < top_k + (c.shape.shared_dim > 0); ++slot) {
      const bool shared = slot == top_k;
      const ExpertView& expert =
          shared ? c.shared_expert[0] : c.experts[size_t(run.ids[size_t(t * top_k + slot)])];
      const float* const inner = run.inner.data() + (t * (top_k + 1) + slot) * stride;
      for (int64_t i = 0; i < expert.gate.rows; ++i) {
        const Product gate = product(expert.gate, i, x), up = product(expert.up, i, x);
        const double y = ref::silu(gate.value) * up.value;
        const double limit = 1.1 * gate.error() * (std::abs(up.value) + up.error()) +
                             std::abs(ref::silu(gate.value)) * up.error() +
                             (4 + std::abs(gate.value)) * 0x1p-22 * std::abs(y) + 0x1p-120;
        ASSERT_NEAR(inner[i], y, limit + rounding(y, limit)) << "token " << t << " slot " << slot;
      }
      const double weight = shared ? double{run.shared_weight[size_t(t)]}
                                   : double{run.weights[size_t(t * top_k + slot)]};
      for (int64_t i = 0; i < hidden; ++i) {
        const Product down = product(expert.down, i, inner);
        sum[size_t(i)] += weight * down.value;
        error[size_t(i)] +=
            weight * down.error() + (top_k + 2) * kF32Epsilon * std::abs(sum[size_t(i)]);
      }
    }
    for (int i = 0; i < hidden; ++i) {
      const auto at = size_t(i);
      ASSERT_NEAR(c.token(run.residual, t)[at], sum[at], error[at] + rounding(sum[at], error[at]))
          << "token " << t << " row " << i;
    }
  }
}

TEST_F(Decode, RoutingAndExpertsEqualTheirOracles) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  for (const PrefillModel& model : decode_models()) {
    const LayerCase c(*stream, random_, model);
    for (int tokens : {1, 3, 16}) {
      if (model.name == "large" && tokens > 3) continue;  // the oracle's time
      SCOPED_TRACE(model.name + " tokens " + std::to_string(tokens));
      const LayerRun run = run_layer(c, 0, tokens);
      expect_normed(c, run, tokens);
      expect_routed(c, run, tokens);
      expect_computed(c, run, tokens);
    }
  }
}

TEST_F(Decode, ATokensExpertsAreTheSameBitsWhateverTheStep) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  for (const PrefillModel& model : decode_models()) {
    const LayerCase c(*stream, random_, model);
    const LayerRun whole = run_layer(c, 0, kStepTokensMax);
    const auto same = [](const auto& part, const auto& all, int first, int count) {
      const size_t row = all.size() / kStepTokensMax;
      return std::memcmp(part.data(), all.data() + size_t(first) * row,
                         size_t(count) * row * sizeof(all[0])) == 0;
    };
    for (int tokens : kStepSizes) {
      for (int first : {0, kStepTokensMax - tokens}) {
        SCOPED_TRACE(model.name + " tokens " + std::to_string(first) + " + " +
                     std::to_string(tokens));
        const LayerRun run = run_layer(c, first, tokens);
        EXPECT_TRUE(same(run.x, whole.x, first, tokens));
        EXPECT_TRUE(same(run.logits, whole.logits, first, tokens));
        EXPECT_TRUE(same(run.ids, whole.ids, first, tokens));
        EXPECT_TRUE(same(run.weights, whole.weights, first, tokens));
        EXPECT_TRUE(same(run.residual, whole.residual, first, tokens));
      }
    }
  }
}

TEST_F(Decode, EqualLogitsGoToTheLowerIdAndNanToTheLast) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  LayerCase c(*stream, random_, decode_models()[2]);
  OwnedMatrix router = random_matrix(random_, DType::kBF16, c.shape.experts, c.shape.hidden);
  unsigned char* const rows = router.bytes.data() + 1;
  const size_t row_bytes = size_t(c.shape.hidden) * 2;
  for (int e = 1; e < c.shape.experts; ++e) {
    std::memcpy(rows + size_t(e) * row_bytes, rows, row_bytes);
  }
  c.router = router.view;
  for (int tokens : {1, 5}) {
    const LayerRun run = run_layer(c, 0, tokens);
    for (size_t i = 0; i < run.ids.size(); ++i) EXPECT_EQ(run.ids[i], int(i) % c.shape.top_k);
  }
  const uint16_t nan = 0x7fc0;  // in every expert but 3 and 9
  for (int e = 0; e < c.shape.experts; ++e) {
    if (e != 3 && e != 9) std::memcpy(rows + size_t(e) * row_bytes, &nan, sizeof(nan));
  }
  for (int tokens : {1, 5}) {
    const LayerRun run = run_layer(c, 0, tokens);
    for (int t = 0; t < tokens; ++t) {
      const int* const ids = run.ids.data() + t * c.shape.top_k;
      EXPECT_EQ(std::vector<int>(ids, ids + 4), (std::vector<int>{3, 9, 0, 1}));
    }
    for (float weight : run.weights) EXPECT_TRUE(std::isnan(weight));
  }
}

TEST_F(Decode, ProjectionsOfTheNormedResidualEqualTheirOracle) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  for (const PrefillModel& model : decode_models()) {
    LayerCase c(*stream, random_, model);
    const auto residual = upload(*stream, bf16_of(c.residual));
    const auto norm = upload(*stream, c.norm);
    const LayerRun normed = run_layer(c, 0, kStepTokensMax);  // its x is the products' input
    const MatrixView views[] = {c.matrix(random_, model.dtype, 517, c.shape.hidden),
                                c.matrix(random_, model.dtype, 128, c.shape.hidden),
                                c.matrix(random_, DType::kBF16, 1, c.shape.hidden),
                                c.matrix(random_, DType::kBF16, 34, c.shape.hidden)};
    std::vector<std::vector<float>> whole[4];
    for (int tokens : kStepSizes) {
      SCOPED_TRACE(model.name + " tokens " + std::to_string(tokens));
      NormProjectParams params{.residual = residual.data(),
                               .norm_weight = norm.data(),
                               .targets = {},
                               .target_count = 4,
                               .tokens = tokens};
      std::vector<std::unique_ptr<DeviceMatrix>> matrices;
      std::vector<std::unique_ptr<DeviceArray<float>>> outs;
      for (int i = 0; i < 4; ++i) {
        const auto stride = static_cast<int>(views[i].rows) + 3;
        matrices.push_back(std::make_unique<DeviceMatrix>(*stream, views[i]));
        outs.push_back(std::make_unique<DeviceArray<float>>(*stream, size_t(tokens * stride)));
        params.targets[i] = {matrices.back()->matrix(), outs.back()->data(), stride, 0, 0};
      }
      norm_project(*stream, decode_kernels(model), params);
      for (int i = 0; i < 4; ++i) {
        const auto found = outs[size_t(i)]->read();
        const int rows = static_cast<int>(views[i].rows), stride = rows + 3;
        for (int at = 0; at < tokens * stride; ++at) {
          if (at % stride >= rows) {
            ASSERT_TRUE(std::isnan(found[size_t(at)]));  // between rows nothing is written
            continue;
          }
          if (tokens != kStepTokensMax) continue;  // the oracle once, bits below
          const Product sum = product(views[i], at % stride, c.token(normed.x, at / stride).data());
          ASSERT_NEAR(found[size_t(at)], sum.value, sum.error())
              << "target " << i << " token " << at / stride << " row " << at % stride;
        }
        whole[i].push_back(found);
      }
    }
    for (const auto& runs : whole) {
      for (const auto& run : runs) {
        EXPECT_EQ(std::memcmp(run.data(), runs.back().data(), run.size() * sizeof(float)), 0)
            << model.name << ": a token's bits depend on the step's size";
      }
    }
  }
}

TEST_F(Decode, OutProjectionIsAddedToTheResidual) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  for (const PrefillModel& model : decode_models()) {
    const int hidden = model.constants.hidden;
    for (int k : {40, hidden, std::min(2 * hidden, kDecodeColumnsMax)}) {
      const OwnedMatrix weight = random_matrix(random_, model.dtype, hidden, k);
      const DeviceMatrix matrix(*stream, weight.view);
      const auto x = random_.bf16_normals(int64_t{kStepTokensMax} * k);
      const auto before = random_.bf16_normals(int64_t{kStepTokensMax} * hidden);
      const auto device_x = upload(*stream, bf16_of(x));
      std::vector<std::vector<float>> runs;
      for (int tokens : kStepSizes) {
        const auto residual = upload(*stream, bf16_of(before));
        project_add(*stream, decode_kernels(model),
                    {.x = device_x.data(),
                     .weight = matrix.matrix(),
                     .residual = residual.data(),
                     .tokens = tokens});
        runs.push_back(floats_of(residual.read()));
        SCOPED_TRACE(model.name + " columns " + std::to_string(k) + " tokens " +
                     std::to_string(tokens));
        const auto rest = size_t(tokens * hidden);
        EXPECT_TRUE(std::equal(before.begin() + int64_t(rest), before.end(),
                               runs.back().begin() + int64_t(rest)));
      }
      for (size_t i = 0; i < before.size(); ++i) {
        const Product sum =
            product(weight.view, int64_t(i) % hidden, x.data() + int64_t(i) / hidden * k);
        const double expected = before[i] + sum.value;
        ASSERT_NEAR(runs.back()[i], expected, sum.error() + rounding(expected, sum.error()))
            << model.name << " columns " << k << " element " << i;
      }
      for (size_t i = 0; i < runs.size(); ++i) {
        const auto count = size_t(kStepSizes[i] * hidden);
        EXPECT_EQ(std::memcmp(runs[i].data(), runs.back().data(), count * sizeof(float)), 0);
      }
    }
  }
}

// One head and one greedy step; `banned` ids may not be chosen.
struct HeadRun {
  std::vector<float> logits;
  std::vector<int> chosen;
  Step step;
  uint64_t entry;  // of the ring, for the new position
};
constexpr int kRingEntries = 8;
HeadRun run_head(const LayerCase& c, const MatrixView& head, int tokens, int rows, int limit,
                 const std::vector<int>& banned) {
  const DecodeKernels kernels = decode_kernels(c.model);
  gpu::Stream& stream = c.stream;
  std::vector<unsigned> mask(size_t(head.rows + 31) / 32, 0);
  for (int id : banned) mask[size_t(id) / 32] |= 1u << (id % 32);
  const auto residual = upload(stream, bf16_of(c.residual));
  const auto norm = upload(stream, c.norm);
  const auto device_mask = upload(stream, mask);
  const DeviceMatrix matrix(stream, head);
  const DeviceArray<float> logits(stream, size_t(rows * head.rows));
  const DeviceArray<Candidate> candidates(stream, size_t(rows * head_candidates(kernels)));
  const DeviceArray<int> chosen(stream, size_t(rows));
  const auto step =
      upload(stream, std::vector<Step>{{.position = 41, .count = tokens, .tokens = {}}});
  auto ring = gpu::PinnedMemory::allocate(gpu::test_device(), kRingEntries * 8);
  CHECK(ring.ok(), ring.status().message());
  const Sampleable sampleable{limit, device_mask.data()};
  norm_head(stream, kernels,
            {.residual = residual.data(),
             .norm_weight = norm.data(),
             .head = matrix.matrix(),
             .sampleable = sampleable,
             .logits = logits.data(),
             .candidates = candidates.data(),
             .tokens = tokens,
             .rows = rows});
  auto* const entries = reinterpret_cast<unsigned long long*>(ring->data());
  greedy_step(stream, kernels,
              {.candidates = candidates.data(),
               .candidate_count = head_candidates(kernels),
               .sampleable = sampleable,
               .chosen = chosen.data(),
               .step = step.data(),
               .ring = entries,
               .ring_entries = kRingEntries,
               .rows = rows});
  HeadRun run{logits.read(), chosen.read(), step.read()[0], 0};
  run.entry = entries[run.step.position % kRingEntries];
  return run;
}

TEST_F(Decode, HeadEqualsItsOracleAndTheLargestLogitIsChosen) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  for (const PrefillModel& model : decode_models()) {
    LayerCase c(*stream, random_, model);
    const auto dtype = model.constants.head_fp8 ? DType::kF8E4M3 : DType::kBF16;
    const int vocab = 2501, limit = 2490;
    const MatrixView head = c.matrix(random_, dtype, vocab, c.shape.hidden);
    const LayerRun normed = run_layer(c, 0, kStepTokensMax);
    std::vector<int> banned = {0, 1, 2488};
    for (int rows : kStepSizes) {
      SCOPED_TRACE(model.name + " rows " + std::to_string(rows));
      const HeadRun run = run_head(c, head, kStepTokensMax, rows, limit, banned);
      const HeadRun all = run_head(c, head, kStepTokensMax, kStepTokensMax, limit, banned);
      const int skipped = kStepTokensMax - rows;  // the last rows are asked for
      EXPECT_EQ(std::memcmp(run.logits.data(), all.logits.data() + skipped * vocab,
                            run.logits.size() * sizeof(float)),
                0);
      for (int r = 0; r < rows; ++r) {
        const float* const logits = run.logits.data() + r * vocab;
        int best = -1;
        for (int id = 0; id < vocab; ++id) {
          if (rows <= 2) {
            const Product sum = product(head, id, c.token(normed.x, skipped + r).data());
            ASSERT_NEAR(logits[id], sum.value, sum.error()) << "row " << r << " id " << id;
          }
          if (id >= limit || std::count(banned.begin(), banned.end(), id)) continue;
          if (best < 0 || logits[id] > logits[best]) best = id;
        }
        EXPECT_EQ(run.chosen[size_t(r)], best);
        if (r == rows - 1) banned.push_back(best);
      }
      EXPECT_EQ(run.step.position, 41 + kStepTokensMax);
      EXPECT_EQ(run.step.count, 1);
      EXPECT_EQ(run.step.tokens[0], run.chosen.back());
      EXPECT_EQ(run.entry, uint64_t(run.step.position) << 32 | unsigned(run.chosen.back()));
    }
  }
}

TEST_F(Decode, GreedyTakesTheLowerOfEqualIdsAndSaysWhenThereIsNone) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  LayerCase c(*stream, random_, decode_models()[2]);
  const int vocab = 5000;
  OwnedMatrix head = random_matrix(random_, DType::kBF16, vocab, c.shape.hidden);
  const size_t row_bytes = size_t(c.shape.hidden) * 2;
  for (size_t id = 1; id < vocab; ++id) {
    std::memcpy(head.bytes.data() + 1 + id * row_bytes, head.bytes.data() + 1, row_bytes);
  }
  EXPECT_EQ(run_head(c, head.view, 1, 1, vocab, {}).chosen[0], 0);
  EXPECT_EQ(run_head(c, head.view, 1, 1, vocab, {0, 1, 2}).chosen[0], 3);
  for (float& value : c.residual) value = std::numeric_limits<float>::quiet_NaN();
  const HeadRun run = run_head(c, head.view, 1, 1, vocab, {});
  EXPECT_EQ(run.chosen[0], -1);
  EXPECT_EQ(run.step.tokens[0], -1);
  EXPECT_EQ(run.entry, uint64_t{42} << 32 | 0xffffffffu);
}

TEST_F(Decode, EmbeddingIsTheTokensRow) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  for (const PrefillModel& model : decode_models()) {
    const int hidden = model.constants.hidden;
    const OwnedMatrix table = random_matrix(random_, DType::kBF16, 320, hidden);
    const DeviceMatrix matrix(*stream, table.view);
    Step step{.position = 7, .count = kStepTokensMax, .tokens = {}};
    for (int& token : step.tokens) token = static_cast<int>(random_.below(320));
    const auto device_step = upload(*stream, std::vector<Step>{step});
    const DeviceArray<uint16_t> residual(*stream, size_t(kStepTokensMax * hidden));
    embed_step(*stream, decode_kernels(model),
               {device_step.data(), matrix.matrix(), residual.data(), kStepTokensMax});
    const auto found = floats_of(residual.read());
    for (int i = 0; i < kStepTokensMax * hidden; ++i) {
      ASSERT_EQ(found[size_t(i)],
                float(ref::weight_at(table.view, step.tokens[i / hidden], i % hidden)));
    }
  }
}

}  // namespace
}  // namespace moray::cuda
