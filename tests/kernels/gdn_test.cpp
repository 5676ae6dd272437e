// gdn against the plain recurrence, its state handed over at every kind of border, bit-equality.
#include <gtest/gtest.h>

#include "tests/kernels/support.h"

namespace moray {
namespace {

struct Dimensions {
  int64_t key_heads, value_heads, key_dim, value_dim, taps;
  int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

const Dimensions kNano{2, 4, 128, 128, 4};
const std::vector<Dimensions> kShapes = {
    kNano, {16, 32, 128, 128, 4}, {1, 3, 20, 37, 4}, {1, 1, 1, 1, 2}, {2, 2, 64, 96, 3}};

struct State {
  explicit State(const Dimensions& d)
      : conv_tail((d.taps - 1 + kDeltaChunk) * d.channels()),
        s(d.value_heads * d.key_dim * d.value_dim),
        keys(d.key_heads * kDeltaChunk * d.key_dim),
        writes(d.value_heads * kDeltaChunk * d.value_dim),
        log_decay(d.value_heads * kDeltaChunk) {}
  GdnStateView view() {
    return {conv_tail.data(), s.data(), keys.data(), writes.data(), log_decay.data()};
  }
  bool intact() const {
    return conv_tail.intact() && s.intact() && keys.intact() && writes.intact() &&
           log_decay.intact();
  }
  Guarded conv_tail, s, keys, writes, log_decay;
};

struct Sequence {
  std::vector<float> qkv, z, b, a, conv_weight, a_log, dt_bias, norm_weight;
};

Sequence make_sequence(Random& random, const Dimensions& d, int64_t tokens) {
  Sequence q{
      random.normals(tokens * d.channels()),  random.normals(tokens * d.value_heads * d.value_dim),
      random.normals(tokens * d.value_heads), random.normals(tokens * d.value_heads),
      random.normals(d.channels() * d.taps),  random.normals(d.value_heads),
      random.normals(d.value_heads),          random.normals(d.value_dim)};
  for (int64_t t = 0; t < tokens; ++t) q.a[size_t(t * d.value_heads)] -= 4;  // one slow head
  return q;
}

GdnArgs args_for(const Dimensions& d, const Sequence& q, int64_t begin, int64_t end, State& state,
                 float* out, Precision precision) {
  return {.qkv = q.qkv.data() + begin * d.channels(),
          .z = q.z.data() + begin * d.value_heads * d.value_dim,
          .b = q.b.data() + begin * d.value_heads,
          .a = q.a.data() + begin * d.value_heads,
          .tokens = end - begin,
          .position = begin,
          .conv_weight = q.conv_weight.data(),
          .a_log = q.a_log.data(),
          .dt_bias = q.dt_bias.data(),
          .norm_weight = q.norm_weight.data(),
          .key_heads = d.key_heads,
          .value_heads = d.value_heads,
          .key_dim = d.key_dim,
          .value_dim = d.value_dim,
          .conv_taps = d.taps,
          .eps = 1e-6f,
          .precision = precision,
          .state = state.view(),
          .out = out,
          .workspace = {}};
}

// Runs [begin, end) on one machine, in calls of `step` tokens.
void run(const cpu::Context* context, const Dimensions& d, const Sequence& q, int64_t begin,
         int64_t end, int64_t step, State& state, Guarded& out, Precision precision) {
  for (int64_t at = begin; at < end; at += step) {
    const int64_t to = std::min(at + step, end);
    GdnArgs args =
        args_for(d, q, at, to, state, out.data() + at * d.value_heads * d.value_dim, precision);
    if (context == nullptr) {
      ref::gdn(args);
      continue;
    }
    Workspace workspace(gdn_workspace_floats(args, context->pool->thread_count()));
    args.workspace = workspace.span();
    cpu::gdn(*context, args);
    EXPECT_TRUE(workspace.intact());
  }
  EXPECT_TRUE(state.intact());
  EXPECT_TRUE(out.intact());
}

// Outputs are o / rms(o) times norm and silu(z), both of order 1. o and its parts are sums of at
// most key_dim + 64 products (rounding: about (key_dim / 8 + 64) epsilons of the magnitudes), and
// the division by rms(o) may enlarge that where o is small beside its parts: a factor of 64 is
// allowed for it. BF16 adds a spacing.
double bound(const Dimensions& d, double expected, Precision precision) {
  const double relative = 64 * (double(d.key_dim) / 8 + 64) * kF32Epsilon;
  const double rounding = precision == Precision::kBfloat16 ? kBf16Spacing : 0;
  return (relative + rounding) * std::abs(expected) + 8 * relative / 64 * 8;
}

TEST(Gdn, AgreesWithTheRecurrence) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    const cpu::Context context(pool, *kernels);
    for (const Dimensions& d : kShapes) {
      for (int64_t tokens : {1, 2, 15, 16, 17, 63, 64, 65, 130, 200}) {
        if (d.value_heads > 8 && tokens != 65) continue;
        for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
          SCOPED_TRACE(testing::Message()
                       << "dims " << d.key_dim << 'x' << d.value_dim << " tokens " << tokens
                       << " precision " << int(precision));
          const Sequence q = make_sequence(random, d, tokens);
          State fast(d), plain(d);
          const int64_t count = tokens * d.value_heads * d.value_dim;
          Guarded actual(count), expected(count);
          run(&context, d, q, 0, tokens, tokens, fast, actual, precision);
          run(nullptr, d, q, 0, tokens, tokens, plain, expected, precision);
          expect_close(actual.data(), expected.data(), count,
                       [&](int64_t i) { return bound(d, expected.data()[i], precision); });
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// The oracle continues the kernel's state and the kernel the oracle's, before, at and after
// borders.
TEST(Gdn, StateIsTheOraclesState) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    const cpu::Context context(pool, *kernels);
    for (const Dimensions& d : {kNano, kShapes[2], kShapes[4]}) {
      for (int64_t border : {1, 2, 3, 62, 63, 64, 65, 66, 67, 100, 128, 129}) {
        SCOPED_TRACE(testing::Message() << "border " << border << " dims " << d.key_dim);
        const int64_t tokens = border + 70, count = tokens * d.value_heads * d.value_dim;
        const Sequence q = make_sequence(random, d, tokens);
        Guarded expected(count);
        State plain(d);
        run(nullptr, d, q, 0, tokens, tokens, plain, expected, Precision::kFloat32);
        for (bool kernel_first : {true, false}) {
          State state(d);
          Guarded actual(count);
          const cpu::Context* first = kernel_first ? &context : nullptr;
          const cpu::Context* second = kernel_first ? nullptr : &context;
          run(first, d, q, 0, border, border, state, actual, Precision::kFloat32);
          run(second, d, q, border, tokens, tokens, state, actual, Precision::kFloat32);
          expect_close(actual.data(), expected.data(), count, [&](int64_t i) {
            return bound(d, expected.data()[i], Precision::kFloat32);
          });
        }
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Gdn, BitsDependOnNeitherSplitNorThreads) {
  Random random;
  SCOPED_TRACE(random.trace());
  constexpr int64_t kTokens = 200;
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    for (const Dimensions& d : {kNano, kShapes[2]}) {
      const Sequence q = make_sequence(random, d, kTokens);
      const int64_t count = kTokens * d.value_heads * d.value_dim;
      ThreadPool one(1);
      const cpu::Context alone(one, *kernels);
      State whole_state(d);
      Guarded whole(count);
      run(&alone, d, q, 0, kTokens, kTokens, whole_state, whole, Precision::kFloat32);
      for (int threads : {1, 2, 3, 5}) {
        ThreadPool pool(threads);
        const cpu::Context context(pool, *kernels);
        for (int64_t step : {1, 2, 3, 5, 15, 16, 17, 63, 64, 65, 130}) {
          State state(d);
          Guarded out(count);
          run(&context, d, q, 0, kTokens, step, state, out, Precision::kFloat32);
          ASSERT_TRUE(out.same_bits(whole)) << "step " << step << ", threads " << threads;
          ASSERT_TRUE(state.s.same_bits(whole_state.s));
        }
      }
    }
  }
}

// Dropping the last tokens is lowering the position, down to the first of the open chunk.
TEST(Gdn, SettingBackThePositionForgetsTheLastTokens) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    const cpu::Context context(pool, *kernels);
    const Dimensions& d = kNano;
    const Sequence q = make_sequence(random, d, 128), other = make_sequence(random, d, 128);
    for (const auto& [reached, kept] :
         {std::pair<int64_t, int64_t>{10, 1}, {64, 1}, {64, 63}, {70, 65}, {128, 65}, {128, 127}}) {
      State state(d), clean(d);
      Guarded out(128 * 512), expected(128 * 512);
      run(&context, d, q, 0, kept, kept, state, out, Precision::kFloat32);
      Sequence mixed = q;  // what is dropped was another text
      std::copy(other.qkv.begin() + kept * d.channels(), other.qkv.end(),
                mixed.qkv.begin() + kept * d.channels());
      run(&context, d, mixed, kept, reached, 128, state, out, Precision::kFloat32);
      run(&context, d, q, kept, 128, 128, state, out, Precision::kFloat32);
      run(&context, d, q, 0, 128, 128, clean, expected, Precision::kFloat32);
      EXPECT_TRUE(out.same_bits(expected)) << "from " << reached << " back to " << kept;
    }
  }
}

// B46: a damaged state or input shows in the outputs of its head.
TEST(Gdn, NanStaysVisible) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  for (const cpu::Kernels* kernels : all_levels()) {
    const cpu::Context context(pool, *kernels);
    const Dimensions& d = kNano;
    const Sequence q = make_sequence(random, d, 80);
    State state(d);
    Guarded out(80 * 512);
    run(&context, d, q, 0, 70, 70, state, out, Precision::kBfloat16);
    for (int64_t i = 0; i < d.key_dim * d.value_dim; ++i) state.s.data()[2 * 128 * 128 + i] = NAN;
    run(&context, d, q, 70, 71, 1, state, out, Precision::kBfloat16);
    for (int64_t i = 0; i < 512; ++i) {
      ASSERT_EQ(std::isnan(out.data()[70 * 512 + i]), i / 128 == 2) << i;
    }
  }
}

}  // namespace
}  // namespace moray
