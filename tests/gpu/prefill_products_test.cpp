// Products of prefill with BF16 activations: projections and the two halves of the experts.
//
// Tolerance of a sum of K products: the tensor core adds sixteen at a time to the accumulator,
// aligned to the largest and cut at 2^-23 of it or a little coarser, so each of the K / 16
// additions loses at most 2^-21 of the magnitudes' sum; scales and slices add less than as much
// again.
#include <algorithm>
#include <numeric>

#include "tests/gpu/prefill_model.h"
#include "tests/gpu/weights.h"

namespace moray::cuda {
namespace {

using gpu::DeviceArray;

// A product and a bound of its error before the output's own rounding.
struct Sum {
  double value = 0, magnitude = 0;
  int64_t terms = 0;
  double error() const { return double(terms / 16 + 8) * 0x1p-21 * magnitude; }
};
Sum product(const MatrixView& weight, int64_t row, const float* x) {
  Sum sum{.terms = weight.cols};
  for (int64_t k = 0; k < weight.cols; ++k) {
    const double term = ref::weight_at(weight, row, k) * x[k];
    sum.value += term;
    sum.magnitude += std::abs(term);
  }
  return sum;
}

class PrefillProducts : public ::testing::Test {
 protected:
  Random random_;
};

// Several targets of either format and every output in one launch, on and off the tiles.
TEST_F(PrefillProducts, ProjectionsEqualTheirOracleForEveryFormatAndOutput) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  for (const PrefillModel& model : prefill_models()) {
    const int k = model.constants.hidden, stride = (k + 7) / 8 * 8 + 8;
    for (int tokens : {1, 33, 64, 130}) {
      SCOPED_TRACE(model.name + " tokens " + std::to_string(tokens));
      auto x = random_.bf16_normals(int64_t{tokens} * stride);
      for (int t = 0; t < tokens; ++t) {  // nothing beyond the columns may be read
        for (int i = k; i < stride; ++i) x[size_t(t * stride + i)] = std::nanf("");
      }
      const auto device_x = upload(*stream, bf16_of(x));
      std::vector<OwnedMatrix> weights;  // moved, never copied: views point into them
      weights.push_back(random_matrix(random_, model.dtype, 322, k));
      weights.push_back(random_matrix(random_, DType::kBF16, 1, k));
      weights.push_back(random_matrix(random_, model.dtype, 256, k));
      weights.push_back(random_matrix(random_, DType::kBF16, 34, k));
      const RowsOutput outputs[] = {RowsOutput::kBf16, RowsOutput::kF32, RowsOutput::kAddBf16,
                                    RowsOutput::kF32};
      std::vector<std::unique_ptr<DeviceMatrix>> matrices;
      std::vector<std::vector<float>> before;
      std::vector<std::unique_ptr<DeviceArray<unsigned char>>> outs;
      ProjectRowsParams params{.x = device_x.data(),
                               .x_stride = stride,
                               .tokens = tokens,
                               .target_count = 4,
                               .targets = {}};
      for (size_t i = 0; i < weights.size(); ++i) {
        const MatrixView& view = weights[i].view;
        const size_t count = size_t(tokens) * size_t(view.rows);
        matrices.push_back(std::make_unique<DeviceMatrix>(*stream, view));
        before.push_back(random_.bf16_normals(int64_t(count)));
        std::vector<unsigned char> bytes(count * (outputs[i] == RowsOutput::kF32 ? 4 : 2), 0xff);
        if (outputs[i] == RowsOutput::kAddBf16) {
          std::memcpy(bytes.data(), bf16_of(before[i]).data(), bytes.size());
        }
        outs.push_back(std::make_unique<DeviceArray<unsigned char>>(
            *stream, std::span<const unsigned char>(bytes)));
        params.targets[i] = {matrices[i]->matrix(), outs[i]->data(), static_cast<int>(view.rows),
                             outputs[i], 0};
      }
      project_rows(*stream, prefill_kernels(model), params);
      for (size_t i = 0; i < weights.size(); ++i) {
        const MatrixView& view = weights[i].view;
        const auto bytes = outs[i]->read();
        for (int64_t at = 0; at < tokens * view.rows; ++at) {
          const Sum sum = product(view, at % view.rows, x.data() + at / view.rows * stride);
          float found;
          double expected = sum.value, bound = sum.error();
          if (outputs[i] == RowsOutput::kF32) {
            std::memcpy(&found, bytes.data() + at * 4, 4);
          } else {
            uint16_t bits;
            std::memcpy(&bits, bytes.data() + at * 2, 2);
            found = bf16_to_float(bits);
            if (outputs[i] == RowsOutput::kAddBf16) expected += before[i][size_t(at)];
            bound += kBf16Spacing / 2 * (std::abs(expected) + bound) +
                     2 * kF32Epsilon * std::abs(expected);
          }
          ASSERT_LE(std::abs(found - expected), bound + 0x1p-130)
              << "target " << i << " token " << at / view.rows << " row " << at % view.rows
              << ": found " << found << ", expected " << expected;
        }
      }
    }
  }
}

TEST_F(PrefillProducts, ATokensProjectionIsTheSameBitsWhateverTheBlock) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  const PrefillModel model = prefill_models()[2];
  const int k = model.constants.hidden, tokens = 700, rows = 20000;  // tall tiles and short ones
  const auto x = upload(*stream, bf16_of(random_.normals(int64_t{tokens} * k)));
  const OwnedMatrix weight = random_matrix(random_, model.dtype, rows, k);
  const DeviceMatrix matrix(*stream, weight.view);
  const DeviceArray<float> all(*stream, size_t(tokens) * rows), few(*stream, size_t(3) * rows);
  const auto project = [&](int first, int count, const DeviceArray<float>& out) {
    project_rows(*stream, prefill_kernels(model),
                 {.x = x.data() + size_t(first) * size_t(k),
                  .x_stride = k,
                  .tokens = count,
                  .target_count = 1,
                  .targets = {{matrix.matrix(), out.data(), rows, RowsOutput::kF32, 0}}});
    return out.read();
  };
  const auto found = project(0, tokens, all);
  for (int first : {0, 61, 697}) {
    const auto part = project(first, 3, few);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), found.begin() + int64_t{first} * rows));
  }
}

// The experts of a model, on the host and on the device, and a block's routing.
struct ExpertsCase {
  ExpertsCase(gpu::Stream& stream, Random& random, const PrefillModel& of)
      : model(of), shape(shape_of(of.constants)) {
    for (int e = 0; e < shape.experts; ++e) add(random, shape.expert_dim, views);
    records = std::make_unique<DeviceRecords>(stream, views);
    if (shape.shared_dim == 0) return;
    add(random, shape.shared_dim, shared_view);
    shared_records = std::make_unique<DeviceRecords>(stream, shared_view);
  }
  void add(Random& random, int width, std::vector<ExpertView>& to) {
    const auto matrix = [&](int rows, int cols) {
      owned.push_back(random_matrix(random, model.dtype, rows, cols));
      return owned.back().view;
    };
    const MatrixView gate = matrix(width, shape.hidden), up = matrix(width, shape.hidden);
    to.push_back({gate, up, matrix(shape.hidden, width)});
  }

  PrefillModel model;
  PrefillShape shape;
  std::vector<OwnedMatrix> owned;  // moved as it grows; the bytes that views point to stay
  std::vector<ExpertView> views, shared_view;
  std::unique_ptr<DeviceRecords> records, shared_records;
};

// silu(g) * u: |silu'| <= 1.1; the fast exponential errs by (2 + |g|) 2^-22, the division by 2^-22.
double swiglu_error(const Sum& gate, const Sum& up) {
  const double y = std::abs(ref::silu(gate.value) * up.value);
  return 1.1 * gate.error() * (std::abs(up.value) + up.error()) +
         std::abs(ref::silu(gate.value)) * up.error() + (4 + std::abs(gate.value)) * 0x1p-22 * y +
         0x1p-120;
}

// One run of both halves for a block.
struct ExpertsRun {
  std::vector<uint16_t> inner, shared_inner, out, shared_out;
  std::vector<int> ids, sorted;
};
ExpertsRun run_experts(gpu::Stream& stream, const ExpertsCase& c, const std::vector<float>& x,
                       const std::vector<float>& logits, int tokens, int tile_rows) {
  const PrefillKernels kernels = prefill_kernels(c.model);
  const PrefillShape& shape = c.shape;
  const int pairs = tokens * shape.top_k;
  const auto device_x = upload(stream, bf16_of(x));
  const auto device_logits = upload(stream, logits);
  const DevicePlan plan(stream, shape, tokens, tile_rows);
  route_rows(stream, kernels,
             {.logits = device_logits.data(),
              .shared_logits = nullptr,
              .logits_stride = shape.experts,
              .shared_stride = 1,
              .tokens = tokens,
              .plan = plan.plan()});
  const int stride = (shape.expert_dim + 7) / 8 * 8, shared_stride = (shape.shared_dim + 7) / 8 * 8;
  const DeviceArray<uint16_t> inner(stream, size_t(pairs) * size_t(stride));
  const DeviceArray<uint16_t> shared_inner(stream, size_t(tokens) * size_t(shared_stride));
  const DeviceArray<uint16_t> out(stream, size_t(pairs) * size_t(shape.hidden));
  const DeviceArray<uint16_t> shared_out(
      stream, shape.shared_dim > 0 ? size_t(tokens) * size_t(shape.hidden) : 0);
  const ExpertRecords shared = c.shared_records ? c.shared_records->records() : ExpertRecords{};
  gate_up_rows(stream, kernels,
               {.x = device_x.data(),
                .x_stride = shape.hidden,
                .tokens = tokens,
                .top_k = shape.top_k,
                .experts = c.records->records(),
                .shared = shared,
                .plan = plan.plan(),
                .shared_tiles = 0,
                .inner = inner.data(),
                .shared_inner = shared_inner.data(),
                .inner_stride = stride,
                .shared_stride = shared_stride});
  down_rows(stream, kernels,
            {.inner = inner.data(),
             .shared_inner = shared_inner.data(),
             .inner_stride = stride,
             .shared_stride = shared_stride,
             .tokens = tokens,
             .top_k = shape.top_k,
             .experts = c.records->records(),
             .shared = shared,
             .plan = plan.plan(),
             .shared_tiles = 0,
             .out = out.data(),
             .shared_out = shared_out.data()});
  return {inner.read(),
          shared_inner.read(),
          out.read(),
          shared_out.read(),
          plan.read(plan.plan().expert_ids, pairs),
          plan.read(plan.plan().sorted, pairs)};
}

void expect_inner(const ExpertView& expert, const float* x, const uint16_t* inner) {
  for (int64_t n = 0; n < expert.gate.rows; ++n) {
    const Sum gate = product(expert.gate, n, x), up = product(expert.up, n, x);
    const double expected = ref::silu(gate.value) * up.value;
    const double error = swiglu_error(gate, up);
    ASSERT_LE(std::abs(bf16_to_float(inner[n]) - expected),
              error + kBf16Spacing / 2 * (std::abs(expected) + error))
        << n << ": found " << bf16_to_float(inner[n]) << ", expected " << expected;
  }
}
void expect_out(const ExpertView& expert, const uint16_t* inner, const uint16_t* out) {
  std::vector<float> x(size_t(expert.down.cols));
  for (size_t i = 0; i < x.size(); ++i) x[i] = bf16_to_float(inner[i]);
  for (int64_t n = 0; n < expert.down.rows; ++n) {
    const Sum sum = product(expert.down, n, x.data());
    ASSERT_LE(std::abs(bf16_to_float(out[n]) - sum.value),
              sum.error() + kBf16Spacing / 2 * (std::abs(sum.value) + sum.error()) + 0x1p-120)
        << n << ": found " << bf16_to_float(out[n]) << ", expected " << sum.value;
  }
}

// Logits that leave some experts without tokens and give one expert all of them.
std::vector<float> uneven_logits(Random& random, int tokens, int experts) {
  auto logits = random.normals(int64_t{tokens} * experts, 2);
  for (int t = 0; t < tokens; ++t) {
    logits[size_t(t) * size_t(experts)] = 50;
    logits[size_t(t) * size_t(experts) + 1] = -50;
  }
  return logits;
}

TEST_F(PrefillProducts, ExpertsEqualTheirOracleAtEveryTileHeight) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  for (const PrefillModel& model : prefill_models()) {
    const ExpertsCase c(*stream, random_, model);
    const PrefillShape& shape = c.shape;
    for (int tokens : {1, 37, 150}) {
      SCOPED_TRACE(model.name + " tokens " + std::to_string(tokens));
      const auto x = random_.bf16_normals(int64_t{tokens} * shape.hidden);
      const auto logits = uneven_logits(random_, tokens, shape.experts);
      const ExpertsRun run = run_experts(*stream, c, x, logits, tokens, 64);
      const size_t stride = run.inner.size() / run.sorted.size();
      for (int check = 0; check < 40; ++check) {
        const auto r = size_t(random_.below(int64_t(run.sorted.size())));
        const auto pair = size_t(run.sorted[r]);
        const ExpertView& expert = c.views[size_t(run.ids[pair])];
        const float* token = x.data() + pair / size_t(shape.top_k) * size_t(shape.hidden);
        expect_inner(expert, token, run.inner.data() + r * stride);
        expect_out(expert, run.inner.data() + r * stride,
                   run.out.data() + pair * size_t(shape.hidden));
        if (shape.shared_dim == 0) continue;
        const auto t = size_t(random_.below(tokens));
        const size_t shared_stride = run.shared_inner.size() / size_t(tokens);
        expect_inner(c.shared_view[0], x.data() + t * size_t(shape.hidden),
                     run.shared_inner.data() + t * shared_stride);
        expect_out(c.shared_view[0], run.shared_inner.data() + t * shared_stride,
                   run.shared_out.data() + t * size_t(shape.hidden));
      }
      // Every row was written, and a short tile sums in the same order as a tall one.
      for (uint16_t bits : run.out) ASSERT_FALSE(std::isnan(bf16_to_float(bits)));
      const ExpertsRun other = run_experts(*stream, c, x, logits, tokens, 32);
      EXPECT_EQ(run.out, other.out);
      EXPECT_EQ(run.shared_out, other.shared_out);
    }
  }
}

}  // namespace
}  // namespace moray::cuda
