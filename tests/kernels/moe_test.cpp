// route and moe against their oracles, and their bit-equality over batches and thread counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/kernels/support.h"

namespace moray {
namespace {

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<float> shared;
};

Routing run_route(const cpu::Context* context, const RouteArgs& wanted) {
  const size_t chosen = size_t(wanted.tokens * wanted.top_k);
  Routing out{std::vector<int32_t>(chosen, -7), std::vector<float>(chosen, NAN),
              std::vector<float>(size_t(wanted.tokens), NAN)};
  RouteArgs args = wanted;
  args.expert_ids = out.ids.data();
  args.expert_weights = out.weights.data();
  args.shared_weight = out.shared.data();
  if (context == nullptr) {
    ref::route(args);
    return out;
  }
  Workspace workspace(route_workspace_floats(args.tokens, args.gate.cols, args.gate.rows,
                                             context->pool->thread_count()));
  args.workspace = workspace.span();
  cpu::route(*context, args);
  EXPECT_TRUE(workspace.intact());
  return out;
}

struct RouterShape {
  int64_t experts, hidden, top_k;
};
const std::vector<RouterShape> kRouters = {{32, 256, 4}, {256, 2048, 8}, {5, 33, 5}, {1, 8, 1}};

// Where the two choose differently, the oracle's own probabilities of both choices must be as close
// as the error of a weight, `relative`, explains: a near tie and nothing else.
void expect_same_experts(const Routing& actual, const Routing& expected, RouteArgs args,
                         double relative) {
  const int64_t top_k = args.top_k;
  const int64_t experts = args.gate.rows;
  args.top_k = experts;
  args.normalise = false;
  const Routing all = run_route(nullptr, args);
  for (int64_t i = 0; i < args.tokens * top_k; ++i) {
    const int32_t found = actual.ids[size_t(i)];
    const int32_t wanted = expected.ids[size_t(i)];
    if (found == wanted) continue;
    double chance[2] = {};
    for (int64_t j = i / top_k * experts; j < (i / top_k + 1) * experts; ++j) {
      if (all.ids[size_t(j)] == found) chance[0] = all.weights[size_t(j)];
      if (all.ids[size_t(j)] == wanted) chance[1] = all.weights[size_t(j)];
    }
    EXPECT_NEAR(chance[0], chance[1], 2 * relative * chance[1])
        << "slot " << i << ": found expert " << found << ", expected " << wanted;
  }
}

// A logit errs by (k/16 + 24) epsilons of sum |w x| as linear does, say e; a weight then by 2 e of
// itself from numerator and denominator and some epsilons from exp and division.
TEST(Route, AgreesWithTheOracle) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    const cpu::Context context(pool, *kernels);
    for (const RouterShape& shape : kRouters) {
      for (int64_t tokens : {1, 2, 15, 16, 17, 65}) {
        for (bool normalise : {true, false}) {
          SCOPED_TRACE(testing::Message() << shape.experts << " experts, " << tokens << " tokens");
          const auto gate = random_matrix(random, DType::kBF16, shape.experts, shape.hidden, 0.1f);
          const auto shared = random_matrix(random, DType::kBF16, 1, shape.hidden, 0.1f);
          const auto x = random.bf16_normals(tokens * shape.hidden);
          const RouteArgs args{.x = x.data(),
                               .tokens = tokens,
                               .gate = gate.view,
                               .shared_gate = shared.view,
                               .top_k = shape.top_k,
                               .normalise = normalise,
                               .expert_ids = nullptr,
                               .expert_weights = nullptr,
                               .shared_weight = nullptr,
                               .workspace = {}};
          const Routing expected = run_route(nullptr, args);
          const Routing actual = run_route(&context, args);
          const double sum_of_magnitudes =
              4 * 0.1 * double(shape.hidden);  // |w| <= 0.4, |x| <= 1..
          const double error =
              (double(shape.hidden) / 128 + 24) * kF32Epsilon * sum_of_magnitudes + 1e-6;
          expect_close(actual.weights.data(), expected.weights.data(), tokens * shape.top_k,
                       [&](int64_t i) { return 2 * error * expected.weights[size_t(i)] + 1e-9; });
          expect_close(actual.shared.data(), expected.shared.data(), tokens,
                       [&](int64_t) { return error; });
          expect_same_experts(actual, expected, args, 2 * error);
        }
      }
    }
  }
}

TEST(Route, BitsDependOnNeitherBatchNorThreads) {
  Random random;
  SCOPED_TRACE(random.trace());
  constexpr int64_t kTokens = 70;
  for (const cpu::Kernels* kernels : all_levels()) {
    for (const RouterShape& shape : kRouters) {
      const auto gate = random_matrix(random, DType::kBF16, shape.experts, shape.hidden, 0.1f);
      const auto shared = random_matrix(random, DType::kBF16, 1, shape.hidden, 0.1f);
      const auto x = random.normals(kTokens * shape.hidden);
      RouteArgs args{.x = x.data(),
                     .tokens = kTokens,
                     .gate = gate.view,
                     .shared_gate = shared.view,
                     .top_k = shape.top_k,
                     .normalise = true,
                     .expert_ids = nullptr,
                     .expert_weights = nullptr,
                     .shared_weight = nullptr,
                     .workspace = {}};
      ThreadPool one(1);
      const cpu::Context alone(one, *kernels);
      const Routing whole = run_route(&alone, args);
      for (int threads : {1, 2, 3, 5}) {
        ThreadPool pool(threads);
        const cpu::Context context(pool, *kernels);
        for (int64_t t = 0; t < kTokens; t += 7) {
          args.x = x.data() + t * shape.hidden;
          args.tokens = 7;
          const Routing part = run_route(&context, args);
          for (int64_t i = 0; i < 7 * shape.top_k; ++i) {
            ASSERT_EQ(part.ids[size_t(i)], whole.ids[size_t(t * shape.top_k + i)]);
            ASSERT_EQ(part.weights[size_t(i)], whole.weights[size_t(t * shape.top_k + i)]);
          }
          for (int64_t i = 0; i < 7; ++i) {
            ASSERT_EQ(part.shared[size_t(i)], whole.shared[size_t(t + i)]);
          }
        }
      }
    }
  }
}

TEST(Route, EqualLogitsGoToTheLowerId) {
  ThreadPool pool(1);
  const std::vector<float> gate(8 * 4, 0.5f), x(4, 1.0f);
  const MatrixView view{.data = gate.data(), .rows = 8, .cols = 4, .dtype = DType::kF32};
  for (const cpu::Kernels* kernels : all_levels()) {
    const cpu::Context context(pool, *kernels);
    const Routing routing = run_route(&context, {.x = x.data(),
                                                 .tokens = 1,
                                                 .gate = view,
                                                 .shared_gate = {},
                                                 .top_k = 3,
                                                 .normalise = true,
                                                 .expert_ids = nullptr,
                                                 .expert_weights = nullptr,
                                                 .shared_weight = nullptr,
                                                 .workspace = {}});
    EXPECT_EQ(routing.ids, (std::vector<int32_t>{0, 1, 2}));
  }
}

// B46: whatever the logits are, ids are distinct and in range, and the damage shows in the weights.
TEST(Route, NanInputGivesNanWeightsAndValidIds) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(1);
  for (const cpu::Kernels* kernels : all_levels()) {
    const cpu::Context context(pool, *kernels);
    auto gate = random.normals(16 * 8);
    for (bool all : {false, true}) {
      gate[3 * 8] = NAN;  // expert 3 only
      auto x = random.normals(8);
      if (all) x[0] = NAN;
      const MatrixView view{.data = gate.data(), .rows = 16, .cols = 8, .dtype = DType::kF32};
      const Routing routing = run_route(&context, {.x = x.data(),
                                                   .tokens = 1,
                                                   .gate = view,
                                                   .shared_gate = {},
                                                   .top_k = 4,
                                                   .normalise = true,
                                                   .expert_ids = nullptr,
                                                   .expert_weights = nullptr,
                                                   .shared_weight = nullptr,
                                                   .workspace = {}});
      const std::set<int32_t> distinct(routing.ids.begin(), routing.ids.end());
      EXPECT_EQ(distinct.size(), 4u);
      EXPECT_GE(*distinct.begin(), 0);
      EXPECT_LT(*distinct.rbegin(), 16);
      for (float weight : routing.weights) EXPECT_TRUE(std::isnan(weight));
    }
  }
}

struct Experts {
  std::vector<OwnedMatrix> matrices;  // gate, up, down of each; the shared one last
  std::vector<ExpertView> views;
  ExpertView shared;
  int64_t hidden = 0, top_k = 0;
};

struct MoeShape {
  int64_t experts, hidden, inner, shared_inner, top_k;
};

Experts make_experts(Random& random, const MoeShape& shape, DType dtype) {
  Experts e;
  e.hidden = shape.hidden;
  e.top_k = shape.top_k;
  for (int64_t i = 0; i <= shape.experts; ++i) {
    const int64_t inner = i < shape.experts ? shape.inner : shape.shared_inner;
    if (inner == 0) continue;
    for (int part = 0; part < 3; ++part) {
      e.matrices.push_back(part < 2 ? random_matrix(random, dtype, inner, shape.hidden, 0.2f)
                                    : random_matrix(random, dtype, shape.hidden, inner, 0.2f));
    }
  }
  for (size_t i = 0; i < e.matrices.size(); i += 3) {
    const ExpertView view{e.matrices[i].view, e.matrices[i + 1].view, e.matrices[i + 2].view};
    if (i / 3 < size_t(shape.experts)) {
      e.views.push_back(view);
    } else {
      e.shared = view;
    }
  }
  return e;
}

struct Tokens {
  std::vector<float> x, residual, weights, shared_weights;
  std::vector<int32_t> ids;
};

Tokens make_tokens(Random& random, const Experts& e, int64_t count) {
  Tokens t{
      random.bf16_normals(count * e.hidden), random.bf16_normals(count * e.hidden), {}, {}, {}};
  const auto experts = static_cast<int64_t>(e.views.size());
  for (int64_t i = 0; i < count; ++i) {
    std::set<int32_t> ids;
    // Half of the tokens crowd on few experts, so that groups of every size occur.
    while (int64_t(ids.size()) < e.top_k) {
      ids.insert(int32_t(random.below(i % 2 ? experts : std::min(experts, e.top_k + 1))));
    }
    t.ids.insert(t.ids.end(), ids.begin(), ids.end());
    for (int64_t slot = 0; slot < e.top_k; ++slot) t.weights.push_back(random.uniform());
    t.shared_weights.push_back(random.uniform());
  }
  return t;
}

MoeArgs args_for(const Experts& e, const Tokens& tokens, int64_t begin, int64_t end,
                 Precision precision) {
  return {.x = tokens.x.data() + begin * e.hidden,
          .tokens = end - begin,
          .hidden = e.hidden,
          .experts = e.views,
          .shared = e.shared,
          .top_k = e.top_k,
          .expert_ids = tokens.ids.data() + begin * e.top_k,
          .expert_weights = tokens.weights.data() + begin * e.top_k,
          .shared_weight = tokens.shared_weights.data() + begin,
          .precision = precision,
          .residual = nullptr,
          .workspace = {}};
}

Guarded run_moe(const cpu::Context& context, const Experts& e, const Tokens& tokens, int64_t begin,
                int64_t end, Precision precision) {
  MoeArgs args = args_for(e, tokens, begin, end, precision);
  Workspace workspace(moe_workspace_floats(args, context.pool->thread_count()));
  Guarded residual((end - begin) * e.hidden);
  std::copy_n(tokens.residual.data() + begin * e.hidden, residual.size(), residual.data());
  args.workspace = workspace.span();
  args.residual = residual.data();
  cpu::moe(context, args);
  EXPECT_TRUE(residual.intact());
  EXPECT_TRUE(workspace.intact());
  return residual;
}

const std::vector<MoeShape> kMoeShapes = {
    {32, 256, 128, 128, 4},  // nano
    {6, 2048, 512, 512, 3},  // 35B with fewer experts
    {3, 300, 70, 0, 2},     {2, 65, 130, 33, 1}, {2, 16, 1, 1, 2},
};

// In FP32 a product errs by (16 + k/128 + 6) epsilons of sum |w x| (see linear_test). With |w|
// about 0.2 and |x| about 1 the chain gate/up -> SiLU product -> down keeps that relative to the
// same sums of magnitudes; 64 + both depths covers the three products and the functions between
// them. In BF16 a hidden value may in addition fall on the other side of a rounding boundary, one
// spacing (2^-8) apart: for one token in three at these depths (an error of 1e-6 against 2^-8, some
// 640 values), and by as much as that value weighs. So the root mean square stays below 2^-8 of
// that of the values however it falls, and over many tokens three outputs in four are the oracle's
// bits.
void compare_moe(const Experts& e, const Tokens& tokens, const Guarded& actual,
                 Precision precision) {
  const auto count = static_cast<int64_t>(tokens.shared_weights.size());
  std::vector<float> expected = tokens.residual;
  MoeArgs args = args_for(e, tokens, 0, count, precision);
  args.residual = expected.data();
  ref::moe(args);
  const bool rounds = precision == Precision::kBfloat16;
  double squares = 0, error_squares = 0;
  size_t unequal = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    unequal += actual.data()[i] != expected[i];
    squares += double{expected[i]} * expected[i];
    error_squares += std::pow(double{actual.data()[i]} - expected[i], 2);
  }
  const double size = std::sqrt(squares / double(expected.size()));
  EXPECT_LE(std::sqrt(error_squares / double(expected.size())),
            size * (rounds ? 0x1p-8 : 256 * kF32Epsilon));
  if (rounds && count >= 17) {
    EXPECT_LE(unequal, expected.size() / 4);
  }
  expect_close(actual.data(), expected.data(), actual.size(), [&](int64_t i) {
    return rounds ? 2 * kBf16Spacing * (std::abs(double{expected[size_t(i)]}) + size)
                  : 4096 * kF32Epsilon * (std::abs(double{expected[size_t(i)]}) + size);
  });
}

TEST(Moe, AgreesWithTheOracle) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    for (const MoeShape& shape : kMoeShapes) {
      for (DType dtype : {DType::kF8E4M3, DType::kBF16, DType::kF32}) {
        const Experts e = make_experts(random, shape, dtype);
        for (int64_t count : {1, 2, 17, 65}) {
          if (shape.hidden > 1000 && count > 2) continue;
          const Tokens tokens = make_tokens(random, e, count);
          for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
            SCOPED_TRACE(testing::Message()
                         << "hidden " << shape.hidden << " tokens " << count << ' '
                         << dtype_name(dtype) << " precision " << int(precision));
            const Guarded actual = run_moe({pool, *kernels}, e, tokens, 0, count, precision);
            compare_moe(e, tokens, actual, precision);
            if (testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Moe, BitsDependOnNeitherBatchNorThreads) {
  Random random;
  SCOPED_TRACE(random.trace());
  constexpr int64_t kTokens = 300;  // more than one group of the shared expert
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    for (const MoeShape& shape : {kMoeShapes[0], kMoeShapes[3]}) {
      for (DType dtype : {DType::kF8E4M3, DType::kF32}) {
        const Experts e = make_experts(random, shape, dtype);
        const Tokens tokens = make_tokens(random, e, kTokens);
        for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
          ThreadPool one(1);
          const Guarded whole = run_moe({one, *kernels}, e, tokens, 0, kTokens, precision);
          for (int threads : {1, 2, 3, 5}) {
            ThreadPool pool(threads);
            for (int64_t step : {1, 7, 16, 64, 130, 300}) {
              for (int64_t begin = 0; begin < kTokens; begin += step) {
                const int64_t end = std::min(begin + step, kTokens);
                const Guarded part = run_moe({pool, *kernels}, e, tokens, begin, end, precision);
                ASSERT_EQ(std::memcmp(part.data(), whole.data() + begin * e.hidden,
                                      size_t(part.size()) * sizeof(float)),
                          0)
                    << "tokens " << begin << " to " << end << ", threads " << threads;
              }
            }
          }
        }
      }
    }
  }
}

// B46: a NaN scale in one expert reaches exactly the tokens that use it.
TEST(Moe, NanScaleReachesItsTokensOnly) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    Experts e = make_experts(random, kMoeShapes[0], DType::kF8E4M3);
    const int32_t damaged = 2;
    const_cast<float*>(e.views[damaged].up.scales)[0] = NAN;
    const Tokens tokens = make_tokens(random, e, 33);
    const Guarded out = run_moe({pool, *kernels}, e, tokens, 0, 33, Precision::kBfloat16);
    for (int64_t t = 0; t < 33; ++t) {
      const auto* ids = tokens.ids.data() + t * e.top_k;
      const bool hit = std::find(ids, ids + e.top_k, damaged) != ids + e.top_k;
      for (int64_t i = 0; i < e.hidden; ++i) {
        ASSERT_EQ(std::isnan(out.data()[t * e.hidden + i]), hit) << "token " << t;
      }
    }
  }
}

}  // namespace
}  // namespace moray
