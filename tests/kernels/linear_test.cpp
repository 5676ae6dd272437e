// linear against its oracle, and bit-equality over token counts, splits and thread counts.
#include <gtest/gtest.h>

#include "tests/kernels/support.h"

namespace moray {
namespace {

struct Shape {
  std::vector<int64_t> rows;  // of each target
  int64_t k;
};

struct Case {
  std::vector<OwnedMatrix> weights;
  std::vector<float> x;
  int64_t k = 0;
};

Case make_case(Random& random, const Shape& shape, const std::vector<DType>& dtypes,
               int64_t tokens) {
  Case c;
  c.k = shape.k;
  c.x = random.bf16_normals(tokens * shape.k);
  for (size_t i = 0; i < shape.rows.size(); ++i) {
    c.weights.push_back(random_matrix(random, dtypes[i % dtypes.size()], shape.rows[i], shape.k));
  }
  return c;
}

// Outputs of all targets for tokens [begin, end).
std::vector<Guarded> run(const cpu::Context& context, const Case& c, int64_t begin, int64_t end,
                         Precision precision) {
  std::vector<Guarded> outputs;
  std::vector<LinearTarget> targets;
  for (const OwnedMatrix& weight : c.weights) {
    outputs.emplace_back((end - begin) * weight.view.rows);
    targets.push_back({.weight = weight.view, .y = nullptr, .y_stride = weight.view.rows});
  }
  for (size_t i = 0; i < targets.size(); ++i) targets[i].y = outputs[i].data();
  Workspace workspace(linear_workspace_floats(end - begin, c.k, context.pool->thread_count()));
  cpu::linear(context, {.x = c.x.data() + begin * c.k,
                        .tokens = end - begin,
                        .k = c.k,
                        .targets = targets,
                        .precision = precision,
                        .workspace = workspace.span()});
  for (const Guarded& output : outputs) EXPECT_TRUE(output.intact());
  EXPECT_TRUE(workspace.intact());
  return outputs;
}

// Sum of |w x|: what the rounding errors of a sum are proportional to.
double magnitude(const MatrixView& weight, const float* x, int64_t row) {
  double sum = 0;
  for (int64_t k = 0; k < weight.cols; ++k) sum += std::abs(ref::weight_at(weight, row, k) * x[k]);
  return sum;
}

// A lane takes at most 16 additions a slice, then one addition a slice, then 4 of the tree; each
// errs by at most one epsilon of the magnitude so far. The smallest normal covers BF16 products,
// which read denormals as zero.
double bound(const MatrixView& weight, const float* x, int64_t row) {
  const double depth = 16 + double(weight.cols) / kScaleBlock + 4 + 2;
  return depth * kF32Epsilon * magnitude(weight, x, row) + 1e-30;
}

void compare_with_oracle(const Case& c, int64_t tokens, const std::vector<Guarded>& outputs,
                         Precision precision) {
  for (size_t i = 0; i < c.weights.size(); ++i) {
    const MatrixView& weight = c.weights[i].view;
    std::vector<float> expected(size_t(tokens * weight.rows));
    const LinearTarget target{.weight = weight, .y = expected.data(), .y_stride = weight.rows};
    ref::linear({.x = c.x.data(),
                 .tokens = tokens,
                 .k = c.k,
                 .targets = {&target, 1},
                 .precision = precision,
                 .workspace = {}});
    expect_close(outputs[i].data(), expected.data(), tokens * weight.rows, [&](int64_t at) {
      return bound(weight, c.x.data() + at / weight.rows * c.k, at % weight.rows);
    });
  }
}

const Shape kNanoProjection{{512, 256, 4, 4}, 256};

const std::vector<Shape> kOddShapes = {
    // odd ends and partial blocks of scales
    {{1, 2, 3, 5}, 1},
    {{7, 131}, 127},
    {{33}, 129},
    {{6}, 300},
};
const std::vector<Shape> kRealShapes = {
    kNanoProjection,  {{128, 128}, 256}, {{256}, 128},  // nano
    {{96, 40}, 2048}, {{40}, 4096},      {{48}, 512},   // widths of the 35B model, fewer rows
};

void sweep(const std::vector<Shape>& shapes, const std::vector<int64_t>& token_counts) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    for (const Shape& shape : shapes) {
      for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}) {
        for (int64_t tokens : token_counts) {
          for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
            SCOPED_TRACE(testing::Message()
                         << "k " << shape.k << " rows " << shape.rows[0] << ' ' << dtype_name(dtype)
                         << " tokens " << tokens << " precision " << int(precision));
            const Case c = make_case(random, shape, {dtype}, tokens);
            const auto outputs = run({pool, *kernels}, c, 0, tokens, precision);
            compare_with_oracle(c, tokens, outputs, precision);
            if (testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Linear, AgreesWithTheOracleAtOddSizes) {
  sweep(kOddShapes, {1, 2, 15, 16, 17, 63, 64, 65, 130});
}

TEST(Linear, AgreesWithTheOracleAtRealSizes) {
  sweep(kRealShapes, {1, 3, 4, 9, 18});
}

// One token's result is the same whatever stands beside it and however the work is cut.
TEST(Linear, BitsDependOnNeitherBatchNorThreads) {
  Random random;
  SCOPED_TRACE(random.trace());
  const std::vector<DType> mixed = {DType::kF8E4M3, DType::kBF16, DType::kF32, DType::kF16};
  constexpr int64_t kTokens = 130;
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    for (const Shape& shape : {kNanoProjection, Shape{{20, 17, 5, 3}, 300}}) {
      for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
        const Case c = make_case(random, shape, mixed, kTokens);
        ThreadPool one(1);
        const auto whole = run({one, *kernels}, c, 0, kTokens, precision);
        for (int threads : {1, 2, 3, 5}) {
          ThreadPool pool(threads);
          for (int64_t step : {1, 2, 3, 5, 8, 15, 16, 17, 63, 64, 65, 130}) {
            if (threads != 2 && step > 3 && step < 65) continue;
            for (int64_t begin = 0; begin < kTokens; begin += step) {
              const int64_t end = std::min(begin + step, kTokens);
              const auto part = run({pool, *kernels}, c, begin, end, precision);
              for (size_t i = 0; i < part.size(); ++i) {
                const int64_t rows = c.weights[i].view.rows;
                ASSERT_EQ(std::memcmp(part[i].data(), whole[i].data() + begin * rows,
                                      size_t((end - begin) * rows) * sizeof(float)),
                          0)
                    << "target " << i << " tokens " << begin << " to " << end << " of step " << step
                    << ", threads " << threads;
              }
            }
          }
        }
      }
    }
  }
}

// Knowing which tiles are normal is a matter of speed only.
TEST(Linear, NormalTilesChangeNoBit) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    for (const Shape& shape : {Shape{{256, 8, 24}, 128}, Shape{{136}, 512}, Shape{{130}, 256}}) {
      for (int64_t tokens : {1, 2, 20}) {
        Case c = make_case(random, shape, {DType::kF8E4M3}, tokens);
        const auto known = run({pool, *kernels}, c, 0, tokens, Precision::kBfloat16);
        for (OwnedMatrix& weight : c.weights) weight.view.normal_tiles = nullptr;
        const auto unknown = run({pool, *kernels}, c, 0, tokens, Precision::kBfloat16);
        for (size_t i = 0; i < known.size(); ++i) EXPECT_TRUE(known[i].same_bits(unknown[i]));
      }
    }
  }
}

// Each code in turn, alone among normal ones, at a random place of a tile.
TEST(Linear, OnlyNormalCodesMakeANormalTile) {
  Random random;
  SCOPED_TRACE(random.trace());
  constexpr int64_t kRows = 11, kCols = 300;  // the last row group and slice are not whole
  std::vector<uint8_t> codes(kRows * kCols, 0xb8);
  const MatrixView view{
      .data = codes.data(), .rows = kRows, .cols = kCols, .dtype = DType::kF8E4M3};
  ASSERT_EQ(normal_tile_count(view), 9);
  std::vector<uint8_t> tiles(9);
  for (int code = 0; code < 256; ++code) {
    const int64_t row = random.below(8), col = random.below(256);
    codes[size_t(row * kCols + col)] = static_cast<uint8_t>(code);
    find_normal_tiles(view, tiles.data());
    const float value = std::abs(f8e4m3_to_float(static_cast<uint8_t>(code)));
    for (int64_t tile = 0; tile < 9; ++tile) {
      const bool is_whole = tile < 6 && tile % 3 < 2;
      const bool has_code = tile == row / 4 * 3 + col / 128;
      const bool is_normal = std::isfinite(value) && value >= 0x1p-6f;
      EXPECT_EQ(tiles[size_t(tile)], is_whole && (!has_code || is_normal)) << code << ", " << tile;
    }
    codes[size_t(row * kCols + col)] = 0xb8;
  }
}

// Row n of the matrix is code n throughout and x picks one element, so y is the code's value.
void expect_exact_codes(int64_t width, bool knows_normal_tiles) {
  constexpr int64_t kCodes = 256;
  OwnedMatrix m;
  for (int64_t n = 0; n < kCodes; ++n) {
    for (int64_t k = 0; k < width; ++k) m.bytes.push_back(static_cast<unsigned char>(n));
  }
  m.scales.assign(4, 1.0f);
  m.view = {.data = m.bytes.data(),
            .scales = m.scales.data(),
            .rows = kCodes,
            .cols = width,
            .dtype = DType::kF8E4M3};
  m.normal_tiles.resize(size_t(normal_tile_count(m.view)));
  find_normal_tiles(m.view, m.normal_tiles.data());
  if (knows_normal_tiles) m.view.normal_tiles = m.normal_tiles.data();
  ThreadPool pool(1);
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
      for (int64_t tokens : {int64_t{1}, int64_t{3}, width}) {
        Case c;
        c.k = width;
        c.weights.push_back(m);
        c.weights[0].view.data = m.bytes.data();
        c.x.assign(size_t(tokens * width), 0.0f);
        for (int64_t t = 0; t < tokens; ++t) c.x[size_t(t * width + (t * 37 + 5) % width)] = 1;
        const auto y = run({pool, *kernels}, c, 0, tokens, precision);
        for (int64_t i = 0; i < tokens * kCodes; ++i) {
          const float expected = f8e4m3_to_float(static_cast<uint8_t>(i % kCodes));
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(y[0].data()[i])) << "code " << i % kCodes;
          } else {
            ASSERT_EQ(y[0].data()[i], expected) << "code " << i % kCodes;
          }
        }
      }
    }
  }
}

TEST(Linear, WidensEveryFp8CodeExactly) {
  for (const int64_t width : {200, 256}) {
    for (const bool knows_normal_tiles : {false, true}) {
      SCOPED_TRACE(std::to_string(width) + (knows_normal_tiles ? ", tiles known" : ""));
      expect_exact_codes(width, knows_normal_tiles);
    }
  }
}

// B46: a damaged scale, weight or input must reach the output as NaN or infinity, never as zero.
TEST(Linear, NanAndInfinityReachTheOutput) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
      for (int64_t tokens : {1, 16}) {
        const Shape shape{{256}, 256};
        Case c = make_case(random, shape, {DType::kF8E4M3}, tokens);
        c.weights[0].scales[3] = kNan;  // rows 128.., columns 128..
        auto y = run({pool, *kernels}, c, 0, tokens, precision);
        for (int64_t i = 0; i < tokens * 256; ++i) {
          ASSERT_EQ(std::isnan(y[0].data()[i]), i % 256 >= 128) << i;
        }
        c = make_case(random, shape, {DType::kBF16, DType::kF32}, tokens);
        c.x[5] = kInfinity;  // of token 0 only
        y = run({pool, *kernels}, c, 0, tokens, precision);
        for (int64_t i = 0; i < tokens * 256; ++i) {
          ASSERT_EQ(std::isfinite(y[0].data()[i]), i >= 256) << i;
        }
      }
    }
  }
}

TEST(Linear, AddsToTheResidualAndRounds) {
  Random random;
  SCOPED_TRACE(random.trace());
  ThreadPool pool(2);
  for (const cpu::Kernels* kernels : all_levels()) {
    SCOPED_TRACE(level_trace(*kernels));
    for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
      for (int64_t tokens : {1, 5, 17}) {
        const Case c = make_case(random, {{257}, 512}, {DType::kF8E4M3}, tokens);
        const MatrixView& weight = c.weights[0].view;
        const auto before = random.bf16_normals(tokens * weight.rows);
        std::vector<float> expected = before;
        Guarded actual(tokens * weight.rows);
        std::copy(before.begin(), before.end(), actual.data());
        Workspace workspace(linear_workspace_floats(tokens, c.k, 2));
        LinearTarget target{.weight = weight, .y = expected.data(), .y_stride = weight.rows};
        LinearArgs args{.x = c.x.data(),
                        .tokens = tokens,
                        .k = c.k,
                        .targets = {&target, 1},
                        .output = LinearArgs::Output::kAddToResidual,
                        .precision = precision,
                        .workspace = workspace.span()};
        ref::linear(args);
        target.y = actual.data();
        cpu::linear({pool, *kernels}, args);
        EXPECT_TRUE(actual.intact());
        expect_close(actual.data(), expected.data(), actual.size(), [&](int64_t at) {
          const double sum = bound(weight, c.x.data() + at / weight.rows * c.k, at % weight.rows);
          const double rounding = precision == Precision::kBfloat16 ? kBf16Spacing : kF32Epsilon;
          return sum + rounding * (std::abs(double{expected[size_t(at)]}) + 1e-6);
        });
      }
    }
  }
}

}  // namespace
}  // namespace moray
