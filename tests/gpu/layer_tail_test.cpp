// layer_tail against the kernels of its stages, which decode_test.cpp holds to their oracles: the
// same bits, launch after launch, whatever the buffers held.
#include <gtest/gtest.h>

#include "tests/gpu/decode_model.h"
#include "tests/support/gates.h"

namespace moray::cuda {
namespace {

using gpu::DeviceArray;

// Buffers of one token; `inputs` is what the next mixer gets.
struct TailRun {
  std::vector<uint16_t> residual;
  std::vector<float> inputs, few_inputs, weights;
  std::vector<int> ids;
  bool operator==(const TailRun&) const = default;
};

class LayerTail : public ::testing::Test {
 protected:
  // A layer, an output projection of the mixer's vectors, and two matrices of the next mixer.
  struct Case {
    Case(gpu::Stream& stream, Random& random, const PrefillModel& model, int mixed_columns)
        : layer(stream, random, model),
          out(stream,
              random_matrix(random, model.dtype, model.constants.hidden, mixed_columns).view),
          next(stream, random_matrix(random, model.dtype, 1000, model.constants.hidden).view),
          few(stream, random_matrix(random, DType::kBF16, 12, model.constants.hidden).view),
          x(upload(stream, bf16_of(random.bf16_normals(mixed_columns)))) {}
    LayerCase layer;
    DeviceMatrix out, next, few;
    DeviceArray<uint16_t> x;
  };

  TailRun run(const Case& c, int token, bool joined, const DeviceArray<unsigned>& barrier) {
    const DecodeShape& shape = c.layer.shape;
    const DecodeKernels kernels = decode_kernels(c.layer.model);
    gpu::Stream& stream = c.layer.stream;
    const auto hidden = size_t(shape.hidden), top_k = size_t(shape.top_k);
    const auto of_token = c.layer.token(c.layer.residual, token);
    const auto residual =
        upload(stream, bf16_of(std::vector<float>(of_token.begin(), of_token.end())));
    const auto norm = upload(stream, c.layer.norm);
    const DeviceMatrix router(stream, c.layer.router);
    std::unique_ptr<DeviceMatrix> gate;
    if (shape.shared_dim > 0) gate = std::make_unique<DeviceMatrix>(stream, c.layer.shared_gate);
    const DeviceArray<uint16_t> x(stream, hidden);
    const DeviceArray<float> logits(stream, size_t(shape.experts));
    const DeviceArray<float> shared_logit(stream, 1), shared_weight(stream, 1);
    const DeviceArray<float> weights(stream, top_k);
    const DeviceArray<int> ids(stream, top_k);
    const DeviceArray<uint16_t> inner(
        stream, (top_k + 1) * size_t(inner_stride(shape.expert_dim, shape.shared_dim)));
    const DeviceArray<float> y(stream, 1000), few(stream, 12);
    const RoutingBuffers routing{x.data(),   logits.data(),  shared_logit.data(), inner.data(),
                                 ids.data(), weights.data(), shared_weight.data()};
    const ExpertRecords shared =
        c.layer.shared_records ? c.layer.shared_records->records() : ExpertRecords{};
    TailParams params{};
    params.out = {
        .x = c.x.data(), .weight = c.out.matrix(), .residual = residual.data(), .tokens = 1};
    params.route = {.residual = residual.data(),
                    .norm_weight = norm.data(),
                    .router = router.matrix(),
                    .shared_gate = gate ? gate->matrix() : Matrix{},
                    .shared = shared,
                    .routing = routing,
                    .tokens = 1};
    params.experts = {.experts = c.layer.records->records(),
                      .shared = shared,
                      .routing = routing,
                      .residual = residual.data(),
                      .tokens = 1};
    params.inputs.residual = residual.data();
    params.inputs.norm_weight = norm.data();
    params.inputs.targets[0] = {.weight = c.next.matrix(), .y = y.data(), .y_stride = 1000};
    params.inputs.targets[1] = {.weight = c.few.matrix(), .y = few.data(), .y_stride = 12};
    params.inputs.target_count = 2;
    params.inputs.tokens = 1;
    params.barrier = barrier.data();
    if (joined) {
      layer_tail(stream, kernels, params);
    } else {
      project_add(stream, kernels, params.out);
      norm_route(stream, kernels, params.route);
      experts_gate_up(stream, kernels, params.experts);
      experts_down(stream, kernels, params.experts);
      norm_project(stream, kernels, params.inputs);
    }
    return {residual.read(), y.read(), few.read(), weights.read(), ids.read()};
  }
  Random random_;
};

TEST_F(LayerTail, GivesTheBitsOfItsStages) {
  MORAY_GPU_TEST();
  SCOPED_TRACE(random_.trace());
  const auto stream = gpu::test_stream();
  bool has_large = false;
  for (const PrefillModel& model : decode_models()) {
    const int columns = std::min(2 * model.constants.hidden, kDecodeColumnsMax);
    if (!fits_layer_tail(decode_kernels(model), columns)) continue;
    has_large |= model.name == "large";
    const DeviceArray<unsigned> barrier = upload(*stream, std::vector<unsigned>{0});
    const Case c(*stream, random_, model, columns);
    for (int token = 0; token < kStepTokensMax; ++token) {
      SCOPED_TRACE(model.name + " token " + std::to_string(token));
      EXPECT_TRUE(run(c, token, true, barrier) == run(c, token, false, barrier));
    }
  }
  if (decode_kernels(decode_models()[0]).shape.arch != 90) GTEST_SKIP() << "sm_90 alone";
  EXPECT_TRUE(has_large) << "the widths of the 35B model";
}

}  // namespace
}  // namespace moray::cuda
