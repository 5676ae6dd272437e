// The models that decode tests compile the kernels for, their weights, and one run of each kernel.
#pragma once

#include "src/kernels/cuda/decode.h"
#include "tests/gpu/prefill_model.h"
#include "tests/gpu/weights.h"

namespace moray::cuda {

inline constexpr int kStepSizes[] = {1, 2, 3, 8, 9, 16};

// Those of prefill (off every tile, both formats and norms, no shared expert), mixed formats with
// unequal widths, and the widths of the 35B model with fewer experts.
inline std::vector<PrefillModel> decode_models() {
  std::vector<PrefillModel> models = prefill_models();
  PrefillModel mixed = models[2];
  mixed.name = "mixed";
  mixed.constants.shared_dim = 64;
  mixed.constants.shared_fp8 = false;
  mixed.constants.head_fp8 = true;
  mixed.constants.normalise_top_k = false;
  PrefillModel large = models[2];
  large.name = "large";
  large.constants.hidden = 2048;
  large.constants.experts = 12;
  large.constants.top_k = 8;
  large.constants.expert_dim = large.constants.shared_dim = 512;
  models.push_back(mixed);
  models.push_back(large);
  return models;
}

inline DecodeKernels decode_kernels(const PrefillModel& model) {
  static std::map<std::string, std::shared_ptr<const gpu::KernelSet>> sets;
  auto& set = sets[model.name];
  const Constants& c = model.constants;
  if (set == nullptr) {
    const gpu::BuildRequest request{
        .sources = sources(),
        .programs = {"decode_project.cu", "decode_experts.cu", "decode_head.cu"},
        .constants = constants_text(c)};
    auto built = gpu::KernelSet::build(gpu::test_device(), request, {});
    CHECK(built.ok(), built.status().message());
    set = *built;
  }
  return find_decode_kernels(*set, {.hidden = c.hidden,
                                    .experts = c.experts,
                                    .top_k = c.top_k,
                                    .expert_dim = c.expert_dim,
                                    .shared_dim = c.shared_dim,
                                    .multiprocessors = c.multiprocessors,
                                    .arch = c.arch});
}

// A product and a bound of its error: the tensor core adds sixteen at a time to the accumulator,
// aligned to the largest and cut at 2^-23 of it or a little coarser, so each of the K / 16
// additions loses at most 2^-21 of the magnitudes' sum; scales and slices add less than as much
// again. F16 activations err by 2^-39 of the largest of their vector.
struct Product {
  double value = 0, magnitude = 0, weights = 0, largest = 0;
  int64_t terms = 0;
  double error() const {
    return double(terms / 16 + 8) * 0x1p-21 * magnitude + 0x1p-39 * largest * weights;
  }
};
inline Product product(const MatrixView& weight, int64_t row, const float* x) {
  Product sum{.terms = weight.cols};
  for (int64_t k = 0; k < weight.cols; ++k) {
    const double w = ref::weight_at(weight, row, k);
    sum.value += w * x[k];
    sum.magnitude += std::abs(w * x[k]);
    sum.weights += std::abs(w);
    sum.largest = std::max(sum.largest, std::abs(double{x[k]}));
  }
  return sum;
}
// Half a BF16 spacing of a sum that may err by `error` itself.
inline double rounding(double value, double error) {
  return kBf16Spacing / 2 * (std::abs(value) + error) + 2 * kF32Epsilon * std::abs(value);
}

// One layer's feed-forward weights and the inputs of a step of 16 tokens.
struct LayerCase {
  LayerCase(gpu::Stream& of, Random& random, const PrefillModel& of_model)
      : stream(of), model(of_model), shape(decode_kernels(of_model).shape) {
    const Constants& c = model.constants;
    const DType shared = c.shared_fp8 ? DType::kF8E4M3 : DType::kBF16;
    for (int e = 0; e < c.experts; ++e) add(random, model.dtype, c.expert_dim, experts);
    records = std::make_unique<DeviceRecords>(stream, experts);
    router = matrix(random, DType::kBF16, c.experts, c.hidden);
    if (c.shared_dim > 0) {
      add(random, shared, c.shared_dim, shared_expert);
      shared_records = std::make_unique<DeviceRecords>(stream, shared_expert);
      shared_gate = matrix(random, DType::kBF16, 1, c.hidden);
    }
    residual = random.bf16_normals(int64_t{kStepTokensMax} * c.hidden, 2);
    for (int i = 0; i < c.hidden; ++i) {  // a faint token and one with an outlier
      residual[size_t(c.hidden + i)] = round_to_bf16(residual[size_t(c.hidden + i)] * 1e-3f);
    }
    residual[size_t(2 * c.hidden + 5)] = 3008;
    norm = random.normals(c.hidden, 0.2f);
    if (!c.zero_centred_norms) {
      for (float& weight : norm) weight += 1;
    }
  }
  MatrixView matrix(Random& random, DType dtype, int rows, int cols) {
    owned.push_back(random_matrix(random, dtype, rows, cols));
    return owned.back().view;
  }
  std::span<const float> token(const std::vector<float>& values, int t) const {
    return std::span(values).subspan(size_t(t * shape.hidden), size_t(shape.hidden));
  }

  gpu::Stream& stream;
  PrefillModel model;
  DecodeShape shape;
  std::vector<OwnedMatrix> owned;  // moved as it grows; the bytes that views point to stay
  std::vector<ExpertView> experts, shared_expert;
  std::unique_ptr<DeviceRecords> records, shared_records;
  MatrixView router, shared_gate;
  std::vector<float> residual, norm;

 private:
  void add(Random& random, DType dtype, int width, std::vector<ExpertView>& to) {
    const MatrixView gate = matrix(random, dtype, width, model.constants.hidden);
    const MatrixView up = matrix(random, dtype, width, model.constants.hidden);
    to.push_back({gate, up, matrix(random, dtype, model.constants.hidden, width)});
  }
};

// What the feed-forward half of a layer leaves for tokens [first, first + count) of a case.
struct LayerRun {
  std::vector<float> x, logits, weights, shared_weight, inner, residual;
  std::vector<int> ids;
};
inline LayerRun run_layer(const LayerCase& c, int first, int count) {
  const DecodeShape& shape = c.shape;
  const DecodeKernels kernels = decode_kernels(c.model);
  const auto tokens = size_t(count), hidden = size_t(shape.hidden), top_k = size_t(shape.top_k);
  const std::vector<float> part(c.residual.begin() + first * shape.hidden,
                                c.residual.begin() + (first + count) * shape.hidden);
  const auto residual = upload(c.stream, bf16_of(part));
  const auto norm = upload(c.stream, c.norm);
  const DeviceMatrix router(c.stream, c.router);
  std::unique_ptr<DeviceMatrix> gate;
  if (shape.shared_dim > 0) gate = std::make_unique<DeviceMatrix>(c.stream, c.shared_gate);
  using gpu::DeviceArray;
  const DeviceArray<uint16_t> x(c.stream, tokens * hidden);
  const DeviceArray<float> logits(c.stream, tokens * size_t(shape.experts));
  const DeviceArray<float> shared_logit(c.stream, tokens), shared_weight(c.stream, tokens);
  const DeviceArray<float> weights(c.stream, tokens * top_k);
  const DeviceArray<int> ids(c.stream, tokens * top_k);
  const size_t inner_row = size_t(inner_stride(shape.expert_dim, shape.shared_dim));
  const DeviceArray<uint16_t> inner(c.stream, tokens * (top_k + 1) * inner_row);
  const RoutingBuffers routing{x.data(),   logits.data(),  shared_logit.data(), inner.data(),
                               ids.data(), weights.data(), shared_weight.data()};
  const ExpertRecords shared = c.shared_records ? c.shared_records->records() : ExpertRecords{};
  norm_route(c.stream, kernels,
             {.residual = residual.data(),
              .norm_weight = norm.data(),
              .router = router.matrix(),
              .shared_gate = gate ? gate->matrix() : Matrix{},
              .shared = shared,
              .routing = routing,
              .tokens = count});
  const ExpertsParams params{.experts = c.records->records(),
                             .shared = shared,
                             .routing = routing,
                             .residual = residual.data(),
                             .tokens = count};
  experts_gate_up(c.stream, kernels, params);
  experts_down(c.stream, kernels, params);
  return {floats_of(x.read()),
          logits.read(),
          weights.read(),
          shared_weight.read(),
          floats_of(inner.read()),
          floats_of(residual.read()),
          ids.read()};
}

}  // namespace moray::cuda
