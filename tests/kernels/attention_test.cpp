// attention against the full softmax of the oracle, over cache formats, ranges and splits.
#include <gtest/gtest.h>

#include "tests/kernels/support.h"

namespace moray {
namespace {

struct Dimensions {
  int64_t heads, kv_heads, head_dim, rotary_dim;
  bool has_gate;
  NormKind kind;
};

const Dimensions kNano{4, 2, 256, 64, true, NormKind::kZeroCentred};
const std::vector<Dimensions> kShapes = {
    kNano,
    {16, 2, 256, 64, true, NormKind::kZeroCentred},  // 35B
    {32, 4, 128, 128, false, NormKind::kPlain},      // the 30B coder
    {3, 1, 20, 6, true, NormKind::kZeroCentred},
    {2, 2, 70, 70, false, NormKind::kPlain},
};

struct Sequence {
  std::vector<float> q_gate, k, v, q_norm, k_norm, inv_freq;
};

Sequence make_sequence(Random& random, const Dimensions& d, int64_t tokens) {
  Sequence s{random.normals(tokens * d.heads * d.head_dim * (d.has_gate ? 2 : 1)),
             random.normals(tokens * d.kv_heads * d.head_dim),
             random.normals(tokens * d.kv_heads * d.head_dim),
             random.normals(d.head_dim),
             random.normals(d.head_dim),
             {}};
  for (int64_t i = 0; i < d.rotary_dim / 2; ++i) {
    s.inv_freq.push_back(std::pow(1e7f, -2.0f * float(i) / float(d.rotary_dim)));
  }
  return s;
}

struct Cache {
  Cache(const Dimensions& d, int64_t positions, DType type)
      : capacity(positions + 3),
        dtype(type),
        keys(d.kv_heads * capacity * d.head_dim),
        values(keys.size()) {}
  KvView view() { return {keys.data(), values.data(), capacity, dtype}; }
  int64_t capacity;
  DType dtype;
  Guarded keys, values;  // twice too large for BF16
};

// Runs [begin, end) in calls of `step` tokens; context null means the oracle.
void run(const cpu::Context* context, const Dimensions& d, const Sequence& s, int64_t begin,
         int64_t end, int64_t step, Precision precision, Cache& cache, float* out) {
  const int64_t width = d.heads * d.head_dim;
  for (int64_t at = begin; at < end; at += step) {
    AttentionArgs args{.q_gate = s.q_gate.data() + at * width * (d.has_gate ? 2 : 1),
                       .k = s.k.data() + at * d.kv_heads * d.head_dim,
                       .v = s.v.data() + at * d.kv_heads * d.head_dim,
                       .tokens = std::min(step, end - at),
                       .position = at,
                       .q_norm = s.q_norm.data(),
                       .k_norm = s.k_norm.data(),
                       .inv_freq = s.inv_freq.data(),
                       .rope_scale = 1.1f,
                       .heads = d.heads,
                       .kv_heads = d.kv_heads,
                       .head_dim = d.head_dim,
                       .rotary_dim = d.rotary_dim,
                       .has_gate = d.has_gate,
                       .eps = 1e-6f,
                       .norm_kind = d.kind,
                       .precision = precision,
                       .cache = cache.view(),
                       .out = out + at * width,
                       .workspace = {}};
    if (context == nullptr) {
      ref::attention(args);
      continue;
    }
    Workspace workspace(attention_workspace_floats(args, context->pool->thread_count()));
    args.workspace = workspace.span();
    cpu::attention(*context, args);
    EXPECT_TRUE(workspace.intact());
  }
  EXPECT_TRUE(cache.keys.intact());
  EXPECT_TRUE(cache.values.intact());
}

// In FP32 a score errs by about (dim / 8 + 12) epsilons of sum |q k| / sqrt(dim), here at most 6
// norms (|1 + w| <= 4, twice) times sqrt(dim), say 16 sqrt(dim); a weight by twice that of itself,
// an output, a mean of values of order 1, by as much of its magnitude. Where q, k and v are
// rounded to BF16 a value may fall one spacing apart: 2^-7 of single terms, which leaves the root
// mean square far below a spacing; the loose bound covers single elements.
double bound(const Dimensions& d, Precision precision, DType cache, double expected) {
  const double dim = double(d.head_dim);
  const double exact = (dim / 8 + 12) * kF32Epsilon * 16 * std::sqrt(dim) * 2 * 4;
  const bool rounds = precision == Precision::kBfloat16 || cache == DType::kBF16;
  return rounds ? kBf16Spacing * (std::abs(expected) + 1) * 2 : exact;
}

void compare(const Dimensions& d, Precision precision, DType cache, const float* actual,
             const std::vector<float>& expected) {
  double squares = 0, error_squares = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    squares += double{expected[i]} * expected[i];
    error_squares += std::pow(double{actual[i]} - expected[i], 2);
  }
  const bool rounds = precision == Precision::kBfloat16 || cache == DType::kBF16;
  EXPECT_LE(error_squares, squares * std::pow(rounds ? 0x1p-9 : 0x1p-17, 2));
  expect_close(actual, expected.data(), int64_t(expected.size()),
               [&](int64_t i) { return bound(d, precision, cache, expected[size_t(i)]); });
}

struct Mode {
  Precision precision;
  DType cache;
};
const Mode kModes[] = {{Precision::kFloat32, DType::kF32},
                       {Precision::kFloat32, DType::kBF16},
                       {Precision::kBfloat16, DType::kBF16},
                       {Precision::kBfloat16, DType::kF32}};

TEST(Attention, AgreesWithTheOracle) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    const cpu::Context context(pool, *kernels);
    for (const Dimensions& d : kShapes) {
      for (int64_t tokens : {1, 2, 15, 16, 17, 63, 64, 65, 130}) {
        if (d.heads > 8 && tokens > 17 && tokens != 65) continue;
        const Sequence s = make_sequence(random, d, tokens);
        for (const Mode& mode : kModes) {
          SCOPED_TRACE(testing::Message() << "heads " << d.heads << '/' << d.kv_heads << 'x'
                                          << d.head_dim << " tokens " << tokens << " precision "
                                          << int(mode.precision) << dtype_name(mode.cache));
          Guarded actual(tokens * d.heads * d.head_dim);
          std::vector<float> expected(size_t(actual.size()));
          Cache fast(d, tokens, mode.cache), plain(d, tokens, mode.cache);
          run(&context, d, s, 0, tokens, tokens, mode.precision, fast, actual.data());
          run(nullptr, d, s, 0, tokens, tokens, mode.precision, plain, expected.data());
          EXPECT_TRUE(actual.intact());
          compare(d, mode.precision, mode.cache, actual.data(), expected);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// Several ranges of keys: the last tokens of a long sequence against the oracle.
TEST(Attention, LongContextsAgree) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  constexpr int64_t kTokens = 1600;
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    const cpu::Context context(pool, *kernels);
    const Dimensions& d = kNano;
    const int64_t width = d.heads * d.head_dim;
    const Sequence s = make_sequence(random, d, kTokens);
    for (const Mode& mode : {kModes[0], kModes[2]}) {
      Guarded actual(kTokens * width);
      Cache cache(d, kTokens, mode.cache);
      run(&context, d, s, 0, kTokens, kTokens, mode.precision, cache, actual.data());
      for (int64_t t : {511, 512, 513, 1023, 1024, 1599}) {
        std::vector<float> expected(size_t(kTokens * width));
        run(nullptr, d, s, t, t + 1, 1, mode.precision, cache, expected.data());
        const std::vector<float> one(expected.begin() + t * width,
                                     expected.begin() + (t + 1) * width);
        compare(d, mode.precision, mode.cache, actual.data() + t * width, one);
      }
    }
  }
}

TEST(Attention, BitsDependOnNeitherSplitNorThreads) {
  Random random;
  SCOPED_TRACE(random.trace());
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    for (const auto& [d, tokens] : {std::pair{kNano, int64_t{1100}},
                                    {kShapes[1], 130},
                                    {kShapes[3], 600},
                                    {kShapes[4], 70}}) {
      const Sequence s = make_sequence(random, d, tokens);
      const int64_t width = d.heads * d.head_dim;
      for (const Mode& mode : {kModes[0], kModes[2]}) {
        ThreadPool one(1);
        const cpu::Context alone(one, *kernels);
        Cache whole_cache(d, tokens, mode.cache);
        Guarded whole(tokens * width);
        run(&alone, d, s, 0, tokens, tokens, mode.precision, whole_cache, whole.data());
        for (int threads : {1, 2, 3, 5}) {
          ThreadPool pool(threads);
          const cpu::Context context(pool, *kernels);
          for (int64_t step : {1, 2, 3, 4, 5, 16, 17, 64, 130, 513}) {
            if (threads != 2 && step > 1 && step != 17) continue;
            Cache cache(d, tokens, mode.cache);
            Guarded out(tokens * width);
            run(&context, d, s, 0, tokens, step, mode.precision, cache, out.data());
            ASSERT_TRUE(out.same_bits(whole))
                << "heads " << d.heads << " step " << step << " threads " << threads;
          }
        }
      }
    }
  }
}

// B46: damage at a position shows from there on and never before it.
TEST(Attention, NanReachesLaterTokensOnly) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  for (const cpu::Kernels* kernels : all_levels()) {
    const cpu::Context context(pool, *kernels);
    const Dimensions& d = kNano;
    const int64_t width = d.heads * d.head_dim;
    for (bool damage_key : {true, false}) {
      Sequence s = make_sequence(random, d, 40);
      auto& damaged = damage_key ? s.k : s.v;
      for (int64_t i = 0; i < d.kv_heads * d.head_dim; ++i) {
        damaged[size_t(21 * d.kv_heads * d.head_dim + i)] = NAN;
      }
      Cache cache(d, 40, DType::kBF16);
      Guarded out(40 * width);
      run(&context, d, s, 0, 40, 40, Precision::kBfloat16, cache, out.data());
      for (int64_t i = 0; i < 40 * width; ++i) {
        ASSERT_EQ(std::isnan(out.data()[i]), i / width >= 21) << "token " << i / width;
      }
    }
  }
}

}  // namespace
}  // namespace moray
