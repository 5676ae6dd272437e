// embed, rms_norm and the element-wise functions.
#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/support.h"

namespace moray {
namespace {

TEST(Embed, WidensRowsExactly) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  for (const cpu::Kernels* kernels : all_levels()) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (int64_t hidden : {1, 15, 16, 17, 256, 300}) {
        const OwnedMatrix table = random_matrix(random, dtype, 50, hidden, 1);
        std::vector<int32_t> tokens;
        for (int i = 0; i < 130; ++i) tokens.push_back(int32_t(random.below(50)));
        Guarded actual(130 * hidden);
        std::vector<float> expected(size_t(130 * hidden));
        cpu::embed({pool, *kernels}, {.table = table.view, .tokens = tokens, .out = actual.data()});
        ref::embed({.table = table.view, .tokens = tokens, .out = expected.data()});
        EXPECT_TRUE(actual.intact());
        expect_close(actual.data(), expected.data(), actual.size(), [](int64_t) { return 0.0; });
      }
    }
  }
}

TEST(EmbedDeathTest, RefusesATokenOutsideTheTable) {
  ThreadPool pool(1);
  const std::vector<float> values(8);
  const MatrixView table{.data = values.data(), .rows = 2, .cols = 4, .dtype = DType::kF32};
  const std::vector<int32_t> tokens = {2};
  float out[4];
  EXPECT_DEATH(cpu::embed(pool, {.table = table, .tokens = tokens, .out = out}), "CHECK failed");
}

// The mean of squares errs by (dim / 8 + 4) epsilons of itself, half of that after the root; BF16
// rounding may fall one spacing apart, twice for the plain norm.
TEST(RmsNorm, AgreesWithTheOracleAndNotOnTheBatch) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(3);
  for (const cpu::Kernels* kernels : all_levels()) {
    for (NormKind kind : {NormKind::kZeroCentred, NormKind::kPlain}) {
      for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
        for (int64_t dim : {1, 7, 16, 17, 128, 256, 300, 2048}) {
          constexpr int64_t kRows = 65;
          const auto x = random.normals(kRows * dim, 3), weight = random.normals(dim);
          RmsNormArgs args{.x = x.data(),
                           .weight = weight.data(),
                           .rows = kRows,
                           .dim = dim,
                           .eps = 1e-6f,
                           .kind = kind,
                           .precision = precision,
                           .out = nullptr};
          Guarded actual(kRows * dim), single(dim);
          std::vector<float> expected(size_t(kRows * dim));
          args.out = expected.data();
          ref::rms_norm(args);
          args.out = actual.data();
          cpu::rms_norm({pool, *kernels}, args);
          EXPECT_TRUE(actual.intact());
          const double relative = precision == Precision::kFloat32
                                      ? (double(dim) / 16 + 8) * kF32Epsilon
                                      : 2.1 * kBf16Spacing;
          expect_close(actual.data(), expected.data(), actual.size(), [&](int64_t i) {
            return relative * std::abs(double{expected[size_t(i)]}) + 1e-30;
          });
          args.x += 40 * dim;
          args.rows = 1;
          args.out = single.data();
          cpu::rms_norm({pool, *kernels}, args);
          EXPECT_EQ(std::memcmp(single.data(), actual.data() + 40 * dim, size_t(dim) * 4), 0);
        }
      }
    }
  }
}

using Function = void (*)(const float*, int64_t, float*);

// Sweeps floats from -110 to 110 and small magnitudes of both signs; errors of up to `absolute`
// are free.
double worst_error_ulp(Function function, double (*oracle)(double), double absolute = 0) {
  std::vector<float> x;
  for (float v = -110; v < 110; v += 0.000731f) x.push_back(v);
  for (float v = 1e-12f; v < 1; v *= 1.0007f) {
    x.push_back(v);
    x.push_back(-v);
  }
  std::vector<float> y(x.size());
  function(x.data(), int64_t(x.size()), y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = oracle(x[i]);
    if (std::abs(expected) > std::numeric_limits<float>::max()) {
      EXPECT_TRUE(std::isinf(y[i])) << x[i];
      continue;
    }
    int exponent;
    std::frexp(expected, &exponent);
    const double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
    worst = std::max(worst, (std::abs(y[i] - expected) - absolute) / ulp);
  }
  return worst;
}

double exp_oracle(double x) {
  return std::exp(x);
}
double softplus_oracle(double x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

TEST(Functions, ErrorStaysWithinTheStatedUlps) {
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    const double exp = worst_error_ulp(kernels->exp, exp_oracle);
    const double sigmoid = worst_error_ulp(kernels->sigmoid, ref::sigmoid, 3e-37);
    const double silu = worst_error_ulp(kernels->silu, ref::silu, 3e-37);
    const double softplus = worst_error_ulp(kernels->softplus, softplus_oracle);
    EXPECT_LE(exp, 2);
    EXPECT_LE(sigmoid, 3);
    EXPECT_LE(silu, 3);
    EXPECT_LE(softplus, 4);
    RecordProperty("ulp", std::to_string(exp) + ' ' + std::to_string(sigmoid) + ' ' +
                              std::to_string(silu) + ' ' + std::to_string(softplus));
  }
}

TEST(Functions, EdgesAndNan) {
  for (const cpu::Kernels* kernels : all_levels()) {
    const float inf = std::numeric_limits<float>::infinity();
    const float x[5] = {NAN, inf, -inf, 0, -0.0f};
    float y[5];
    kernels->exp(x, 5, y);
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], inf);
    EXPECT_EQ(y[2], 0);
    EXPECT_EQ(y[3], 1);
    kernels->sigmoid(x, 5, y);
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], 1);
    EXPECT_EQ(y[2], 0);
    EXPECT_EQ(y[3], 0.5f);
    kernels->silu(x, 5, y);
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], inf);
    kernels->softplus(x, 5, y);
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], inf);
    EXPECT_EQ(y[2], 0);
  }
}

TEST(Level, NamesAndForcing) {
  ASSERT_TRUE(cpu::cpu_level().ok());
  const auto table = cpu::kernels_for(cpu::Level::kAvx2);
  ASSERT_TRUE(table.ok());
  EXPECT_EQ((*table)->level, cpu::Level::kAvx2);
  EXPECT_FALSE((*table)->has_bf16_products);
  EXPECT_EQ(cpu::level_name(cpu::Level::kAvx512), "avx512");
}

}  // namespace
}  // namespace moray
