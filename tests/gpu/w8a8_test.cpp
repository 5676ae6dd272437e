// W8A8 products on a GPU against sums in double over the same codes, for the main loop of this
// card and, wherever it runs, for the mma.sync loop of sm_89.
#include "src/kernels/cuda/w8a8.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "src/kernels/cuda/constants.h"
#include "src/kernels/cuda/sources.h"
#include "tests/gpu/device.h"
#include "tests/gpu/w8a8_oracle.h"
#include "tests/support/gates.h"

namespace moray::cuda {
namespace {

using gpu::DeviceArray;

std::shared_ptr<const gpu::KernelSet> kernels_of(int arch) {
  static std::map<int, std::shared_ptr<const gpu::KernelSet>> built;
  if (built[arch] == nullptr) {
    const auto device = gpu::test_device();
    if (device == nullptr) return nullptr;
    const gpu::BuildRequest request{
        .sources = sources(),
        .programs = {"w8a8_dense.cu", "w8a8_experts.cu"},
        .constants =
            constants_text({.arch = arch, .multiprocessors = device->info().multiprocessors}),
    };
    auto set = gpu::KernelSet::build(device, request, {});
    EXPECT_TRUE(set.ok()) << set.status().message();
    if (set.ok()) built[arch] = *set;
  }
  return built[arch];
}

enum class Loop { kNative, kMma };

// A card, its kernels, fresh random inputs.
class W8a8 : public ::testing::TestWithParam<Loop> {
 protected:
  bool open() {
    stream_ = gpu::test_stream();
    if (stream_ == nullptr) return false;
    const gpu::DeviceInfo& info = gpu::test_device()->info();
    const int arch = GetParam() == Loop::kNative ? info.arch() : 89;
    const auto set = kernels_of(arch);
    if (set == nullptr) return false;
    kernels_ = find_w8a8_kernels(*set, arch, info.multiprocessors);
    std::printf("%s\n", random_.trace().c_str());
    return true;
  }
  gpu::Stream& stream() { return *stream_; }

  std::unique_ptr<gpu::Stream> stream_;
  W8a8Kernels kernels_;
  Random random_;
};

INSTANTIATE_TEST_SUITE_P(Loops, W8a8, ::testing::Values(Loop::kNative, Loop::kMma),
                         [](const auto& loop) {
                           return loop.param == Loop::kNative ? "Native" : "MmaSync";
                         });

// Activations in device memory; the stride of the scales is off the tile on purpose.
struct DeviceRows {
  DeviceArray<uint8_t> codes;
  DeviceArray<float> scales;
  QuantisedRows view;

  DeviceRows(gpu::Stream& stream, const Quantised& q)
      : codes(stream, q.codes),
        scales(stream, q.scale_columns(q.rows + 5)),
        view{codes.data(), scales.data(), int(q.rows), int(q.cols), int(q.rows + 5)} {}
  DeviceRows(gpu::Stream& stream, int64_t rows, int64_t cols)
      : codes(stream, size_t(rows * cols)),
        scales(stream, size_t(cols / kSlice * (rows + 5))),
        view{codes.data(), scales.data(), int(rows), int(cols), int(rows + 5)} {}
};

struct DeviceMatrix {
  DeviceArray<uint8_t> codes;
  DeviceArray<float> scales;
  Matrix view;

  DeviceMatrix(gpu::Stream& stream, const Quantised& q)
      : codes(stream, q.codes), scales(stream, q.scales), view{codes.data(), scales.data(),
                                                               int(q.rows),  int(q.cols),
                                                               int(q.cols),  Format::kFp8} {}
};

constexpr float kActivationScale = 0x1p-5f, kWeightScale = 0x1p-12f;

struct DenseCase {
  int64_t tokens, k;
  std::vector<int64_t> rows;  // of each target
  W8a8Output output;
};

// What out held before, for kAddBf16.
constexpr float kBefore = 0.5f;

template <typename T>
double widened(T value) {
  if constexpr (sizeof(T) == 2) return bf16_to_float(value);
  return value;
}

// One array an output, with room of 8 columns behind each row that must stay untouched. Of large
// outputs every so-manieth element is compared: an oracle in double is slow.
template <typename T>
void check_dense(gpu::Stream& stream, const W8a8Kernels& kernels, Random& random,
                 const DenseCase& c) {
  SCOPED_TRACE(::testing::Message() << "tokens " << c.tokens << " k " << c.k << " targets "
                                    << c.rows.size() << " of " << c.rows.front());
  const Quantised x = random_quantised(random, c.tokens, c.k, 1, kActivationScale);
  const DeviceRows device_x(stream, x);
  W8a8Dense params{};
  params.x = device_x.view;
  params.tokens = int(c.tokens);
  params.target_count = int(c.rows.size());
  std::vector<Quantised> weights;
  std::vector<std::unique_ptr<DeviceMatrix>> matrices;
  std::vector<std::unique_ptr<DeviceArray<T>>> outs;
  for (size_t i = 0; i < c.rows.size(); ++i) {
    const int64_t stride = c.rows[i] + 8;
    weights.push_back(random_quantised(random, c.rows[i], c.k, 128, kWeightScale));
    matrices.push_back(std::make_unique<DeviceMatrix>(stream, weights.back()));
    if constexpr (sizeof(T) == 2) {
      const std::vector<T> before(size_t(c.tokens * stride), float_to_bf16(kBefore));
      outs.push_back(std::make_unique<DeviceArray<T>>(stream, before));
    } else {
      outs.push_back(std::make_unique<DeviceArray<T>>(stream, size_t(c.tokens * stride)));
    }
    params.targets[i] = {matrices[i]->view, outs[i]->data(), int(stride), c.output};
  }
  w8a8_dense(stream, kernels, params);
  for (size_t i = 0; i < c.rows.size(); ++i) {
    const std::vector<T> got = outs[i]->read();
    const int64_t n_rows = c.rows[i], stride = n_rows + 8;
    const int64_t step = 1 + c.tokens * n_rows / 60'000;
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t n = n_rows; n < stride; ++n) {
        const double beside = widened(got[size_t(t * stride + n)]);
        ASSERT_TRUE(sizeof(T) == 2 ? beside == kBefore : std::isnan(beside)) << t << " " << n;
      }
      for (int64_t n = 0; n < n_rows; ++n) {
        if ((t * n_rows + n) % step != 0) continue;
        Sum sum = dot(x, t, weights[i], n);
        if (c.output == W8a8Output::kAddBf16) sum.value += kBefore;
        if (sizeof(T) == 2) sum.bound += bf16_rounding(sum.value);
        const double found = widened(got[size_t(t * stride + n)]);
        ASSERT_LE(std::abs(found - sum.value), sum.bound)
            << "target " << i << " token " << t << " row " << n << ": found " << found
            << ", expected " << sum.value;
      }
    }
  }
}

TEST_P(W8a8, DenseStoresTheSumsOfEveryTarget) {
  MORAY_GPU_TEST();
  ASSERT_TRUE(open());
  for (const DenseCase& c : std::vector<DenseCase>{
           {1, 128, {128}, W8a8Output::kF32},
           {63, 256, {136, 128}, W8a8Output::kF32},
           {64, 1024, {256, 64, 8}, W8a8Output::kF32},
           {129, 2048, {384}, W8a8Output::kF32},
           {300, 384, {256, 128, 128, 72}, W8a8Output::kF32},
       }) {
    check_dense<float>(stream(), kernels_, random_, c);
  }
}

TEST_P(W8a8, DenseRoundsOnceToBf16OrAddsToTheResidual) {
  MORAY_GPU_TEST();
  ASSERT_TRUE(open());
  for (const W8a8Output output : {W8a8Output::kBf16, W8a8Output::kAddBf16}) {
    check_dense<uint16_t>(stream(), kernels_, random_, {65, 512, {256, 40}, output});
    check_dense<uint16_t>(stream(), kernels_, random_, {200, 896, {128, 136}, output});
  }
  // As Qwen3.6-35B-A3B's in- and out-projections.
  check_dense<uint16_t>(stream(), kernels_, random_, {1537, 2048, {8192, 4096}, W8a8Output::kBf16});
  check_dense<uint16_t>(stream(), kernels_, random_, {1000, 4096, {2048}, W8a8Output::kAddBf16});
}

// Records as the model stores them: gate, up, down, then their scales.
struct Experts {
  int64_t hidden, width;
  std::vector<Quantised> gate, up, down;
  std::unique_ptr<DeviceArray<uint8_t>> memory;
  ExpertRecords records{};

  Experts(gpu::Stream& stream, Random& random, int64_t count, int64_t hidden_, int64_t width_)
      : hidden(hidden_), width(width_) {
    const int64_t matrix = hidden * width, scales = (matrix / kSlice / kSlice) * 4;
    const int64_t record = (3 * matrix + 3 * scales + 255) / 256 * 256;
    std::vector<uint8_t> bytes(size_t(count * record), 0xff);
    for (int64_t e = 0; e < count; ++e) {
      gate.push_back(random_quantised(random, width, hidden, 128, kWeightScale));
      up.push_back(random_quantised(random, width, hidden, 128, kWeightScale));
      down.push_back(random_quantised(random, hidden, width, 128, kWeightScale));
      uint8_t* at = bytes.data() + e * record;
      for (const Quantised* q : {&gate.back(), &up.back(), &down.back()})
        at = std::copy(q->codes.begin(), q->codes.end(), at);
      for (const Quantised* q : {&gate.back(), &up.back(), &down.back()}) {
        std::memcpy(at, q->scales.data(), size_t(scales));
        at += scales;
      }
    }
    memory = std::make_unique<DeviceArray<uint8_t>>(stream, bytes);
    records = {.base = reinterpret_cast<const char*>(memory->data()),
               .record_bytes = record,
               .up = int(matrix),
               .down = int(2 * matrix),
               .gate_scales = int(3 * matrix),
               .up_scales = int(3 * matrix + scales),
               .down_scales = int(3 * matrix + 2 * scales),
               .width = int(width),
               .gate_stride = int(hidden),
               .down_stride = int(width),
               .format = Format::kFp8};
  }
};

struct Plan {
  std::vector<int> expert_of;  // sorted row -> expert
  std::vector<ExpertTile> tiles;

  explicit Plan(const std::vector<int>& counts) {
    for (int e = 0; e < int(counts.size()); ++e) {
      const int first = int(expert_of.size());
      for (int row = 0; row < counts[size_t(e)]; row += kW8a8TileRows)
        tiles.push_back({e, first + row, std::min(kW8a8TileRows, counts[size_t(e)] - row)});
      expert_of.insert(expert_of.end(), size_t(counts[size_t(e)]), e);
    }
  }
};

// Reads back what gate_up wrote as activations of down.
Quantised read_rows(const DeviceRows& rows) {
  Quantised q{
      .rows = rows.view.rows, .cols = rows.view.cols, .codes = rows.codes.read(), .scales = {}};
  const std::vector<float> columns = rows.scales.read();
  for (int64_t r = 0; r < q.rows; ++r)
    for (int64_t s = 0; s < q.slices(); ++s)
      q.scales.push_back(columns[size_t(s * rows.view.scale_stride + r)]);
  return q;
}

// |d silu(g) u| for small changes: |silu'| <= 1.1; __expf and the division err by few units.
Sum swiglu(const Sum& gate, const Sum& up) {
  const double silu = gate.value / (1 + std::exp(-gate.value));
  Sum sum{.value = silu * up.value};
  sum.bound = 1.1 * gate.bound * (std::abs(up.value) + up.bound) + std::abs(silu) * up.bound +
              std::abs(sum.value) * 16 * kF32Epsilon;
  return sum;
}

// Codes err by half a step of E4M3: 2^-4 of a normal value, 2^-10 of the scale below.
void check_inner_row(const Quantised& x, const Experts& experts, int expert, const Quantised& inner,
                     int64_t r) {
  for (int64_t s = 0; s < inner.slices(); ++s) {
    std::vector<Sum> row;
    double largest = 0, slack = 0;
    for (int64_t i = s * kSlice; i < (s + 1) * kSlice; ++i) {
      row.push_back(swiglu(dot(x, r, experts.gate[size_t(expert)], i),
                           dot(x, r, experts.up[size_t(expert)], i)));
      largest = std::max(largest, std::abs(row.back().value));
      slack = std::max(slack, row.back().bound);
    }
    const double scale = inner.scale(r, s);
    ASSERT_NEAR(scale * 448, largest, slack + largest * 4 * kF32Epsilon) << r << " " << s;
    for (int64_t i = 0; i < kSlice; ++i) {
      const Sum& expected = row[size_t(i)];
      const double found = inner.at(r, s * kSlice + i);
      const double half_step = std::abs(expected.value) * 0x1p-4 + scale * 0x1p-10;
      // The scale's own deviation moves every value of the row by the same share.
      ASSERT_LE(std::abs(found - expected.value), half_step * 1.001 + expected.bound * 1.07)
          << "row " << r << " channel " << s * kSlice + i << ": found " << found << ", expected "
          << expected.value;
    }
  }
}

void check_down_row(const Quantised& inner, int64_t r, const Quantised& down,
                    const uint16_t* found) {
  for (int64_t n = 0; n < down.rows; ++n) {
    const Sum sum = dot(inner, r, down, n);
    ASSERT_LE(std::abs(bf16_to_float(found[n]) - sum.value), sum.bound + bf16_rounding(sum.value))
        << "row " << r << " column " << n;
  }
}

void check_experts(gpu::Stream& stream, const W8a8Kernels& kernels, Random& random, int64_t hidden,
                   int64_t width, const std::vector<int>& counts) {
  SCOPED_TRACE(::testing::Message()
               << "hidden " << hidden << " width " << width << " experts " << counts.size());
  const Plan plan(counts);
  const Experts experts(stream, random, int64_t(counts.size()), hidden, width);
  const auto rows = int64_t(plan.expert_of.size());
  const Quantised x = random_quantised(random, rows, hidden, 1, kActivationScale);
  const DeviceRows device_x(stream, x), device_inner(stream, rows, width);
  const DeviceArray<ExpertTile> tiles(stream, plan.tiles);
  const DeviceArray<int> tile_count(stream, std::vector<int>{int(plan.tiles.size())});
  std::vector<int> out_row(plan.expert_of.size());
  std::iota(out_row.begin(), out_row.end(), 0);
  for (size_t i = out_row.size(); i > 1; --i)
    std::swap(out_row[i - 1], out_row[size_t(random.below(int64_t(i)))]);
  const DeviceArray<int> device_out_row(stream, out_row);
  const DeviceArray<uint16_t> out(stream, size_t(rows * hidden));

  w8a8_gate_up(stream, kernels,
               {.x = device_x.view,
                .experts = experts.records,
                .expert_count = int(counts.size()),
                .tiles = tiles.data(),
                .tile_count = tile_count.data(),
                .inner = device_inner.view});
  w8a8_down(stream, kernels,
            {.inner = device_inner.view,
             .experts = experts.records,
             .expert_count = int(counts.size()),
             .tiles = tiles.data(),
             .tile_count = tile_count.data(),
             .out_row = device_out_row.data(),
             .out = out.data(),
             .columns = int(hidden),
             .out_stride = int(hidden)});
  const Quantised inner = read_rows(device_inner);
  const std::vector<uint16_t> found = out.read();
  const int64_t step = 1 + rows * hidden * width * 3 / 100'000'000;
  for (int64_t r = 0; r < rows; r += step) {
    const int expert = plan.expert_of[size_t(r)];
    ASSERT_NO_FATAL_FAILURE(check_inner_row(x, experts, expert, inner, r));
    ASSERT_NO_FATAL_FAILURE(check_down_row(inner, r, experts.down[size_t(expert)],
                                           found.data() + out_row[size_t(r)] * hidden));
  }
}

TEST_P(W8a8, ExpertsOfAnySharesOfTheRowsAreRight) {
  MORAY_GPU_TEST();
  ASSERT_TRUE(open());
  check_experts(stream(), kernels_, random_, 256, 128, {0, 3, 1, 0, 65, 64, 63, 0});
  check_experts(stream(), kernels_, random_, 384, 256, {0, 0, 200, 0});  // one takes all
  check_experts(stream(), kernels_, random_, 512, 384, {1, 127, 129, 2});
  check_experts(stream(), kernels_, random_, 1024, 512, {20, 11});
  check_experts(stream(), kernels_, random_, 2048, 512, {300, 0, 128, 129, 513, 1, 64, 257});
  check_experts(stream(), kernels_, random_, 2048, 768, {250, 7});
}

TEST_P(W8a8, OneExpertNeedsNoPlan) {
  MORAY_GPU_TEST();
  ASSERT_TRUE(open());
  const int64_t rows = 150, hidden = 256, width = 256;
  const Experts experts(stream(), random_, 1, hidden, width);
  const Quantised x = random_quantised(random_, rows, hidden, 1, kActivationScale);
  const DeviceRows device_x(stream(), x), device_inner(stream(), rows, width);
  const DeviceArray<uint16_t> out(stream(), size_t(rows * hidden));
  w8a8_gate_up(stream(), kernels_,
               {.x = device_x.view,
                .experts = experts.records,
                .expert_count = 1,
                .tokens = int(rows),
                .inner = device_inner.view});
  w8a8_down(stream(), kernels_,
            {.inner = device_inner.view,
             .experts = experts.records,
             .expert_count = 1,
             .tokens = int(rows),
             .out = out.data(),
             .columns = int(hidden),
             .out_stride = int(hidden)});
  const Quantised inner = read_rows(device_inner);
  const std::vector<uint16_t> found = out.read();
  for (int64_t r = 0; r < rows; ++r) {
    ASSERT_NO_FATAL_FAILURE(check_inner_row(x, experts, 0, inner, r));
    ASSERT_NO_FATAL_FAILURE(check_down_row(inner, r, experts.down[0], found.data() + r * hidden));
  }
}

TEST_P(W8a8, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  MORAY_GPU_TEST();
  ASSERT_TRUE(open());
  const int64_t rows = 257, k = 512, n = 384;
  const Quantised x = random_quantised(random_, rows, k, 1, kActivationScale);
  const Quantised w = random_quantised(random_, n, k, 128, kWeightScale);
  const DeviceMatrix weight(stream(), w);
  const auto run = [&](int64_t first, int64_t count) {
    Quantised part{.rows = count, .cols = k, .codes = {}, .scales = {}};
    part.codes.assign(x.codes.begin() + first * k, x.codes.begin() + (first + count) * k);
    part.scales.assign(x.scales.begin() + first * x.slices(),
                       x.scales.begin() + (first + count) * x.slices());
    const DeviceRows device_x(stream(), part);
    const DeviceArray<float> out(stream(), size_t(count * n));
    W8a8Dense params{};
    params.x = device_x.view;
    params.tokens = int(count);
    params.target_count = 1;
    params.targets[0] = {weight.view, out.data(), int(n), W8a8Output::kF32};
    w8a8_dense(stream(), kernels_, params);
    return out.read();
  };
  const std::vector<float> all = run(0, rows);
  for (const int64_t first : {0, 1, 100, 256}) {
    const int64_t count = std::min<int64_t>(rows - first, 1 + random_.below(70));
    const std::vector<float> some = run(first, count);
    EXPECT_EQ(0, std::memcmp(some.data(), all.data() + first * n, some.size() * sizeof(float)))
        << first << " " << count;
  }
}

// Against the oracle of the op on the activations before quantisation: |x - quantised x| is at most
// 2^-4 |x| + 2^-10 scale, and enters the sum times |w|.
TEST_P(W8a8, QuantisationErrsByHalfAStepOfEachActivation) {
  MORAY_GPU_TEST();
  ASSERT_TRUE(open());
  const int64_t tokens = 40, k = 640, n = 256;
  const std::vector<float> x = random_.bf16_normals(tokens * k);
  const Quantised q = quantise(x, tokens, k);
  const Quantised w = random_quantised(random_, n, k, 128, kWeightScale);
  const DeviceRows device_x(stream(), q);
  const DeviceMatrix weight(stream(), w);
  const DeviceArray<float> out(stream(), size_t(tokens * n));
  W8a8Dense params{};
  params.x = device_x.view;
  params.tokens = int(tokens);
  params.target_count = 1;
  params.targets[0] = {weight.view, out.data(), int(n), W8a8Output::kF32};
  w8a8_dense(stream(), kernels_, params);
  const std::vector<float> found = out.read();

  std::vector<float> expected(size_t(tokens * n));
  const LinearTarget target{.weight = {.data = w.codes.data(),
                                       .scales = w.scales.data(),
                                       .rows = n,
                                       .cols = k,
                                       .dtype = DType::kF8E4M3},
                            .y = expected.data(),
                            .y_stride = n};
  ref::linear({.x = x.data(),
               .tokens = tokens,
               .k = k,
               .targets = {&target, 1},
               .precision = Precision::kBfloat16,
               .workspace = {}});
  expect_close(found.data(), expected.data(), tokens * n, [&](int64_t at) {
    const int64_t t = at / n, row = at % n;
    double bound = dot(q, t, w, row).bound + std::abs(expected[size_t(at)]) * kF32Epsilon;
    for (int64_t c = 0; c < k; ++c) {
      const double step =
          std::abs(x[size_t(t * k + c)]) * 0x1p-4 + q.scale(t, c / kSlice) * 0x1p-10;
      bound += std::abs(w.at(row, c)) * step;
    }
    return bound;
  });
}

TEST_P(W8a8, NoTokensWriteNothing) {
  MORAY_GPU_TEST();
  ASSERT_TRUE(open());
  const Quantised x = random_quantised(random_, 4, 128, 1, kActivationScale);
  const DeviceRows device_x(stream(), x);
  const DeviceMatrix weight(stream(), random_quantised(random_, 128, 128, 128, kWeightScale));
  const DeviceArray<float> out(stream(), size_t(4 * 128));
  W8a8Dense params{};
  params.x = device_x.view;
  params.target_count = 1;
  params.targets[0] = {weight.view, out.data(), 128, W8a8Output::kF32};
  w8a8_dense(stream(), kernels_, params);
  for (const float value : out.read()) ASSERT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace moray::cuda
