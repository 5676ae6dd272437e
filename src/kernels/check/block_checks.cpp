// Checks of a block's products with BF16 activations: projections and both halves of the experts.
#include "src/kernels/check/checks.h"
#include "src/kernels/check/device_plan.h"
#include "src/kernels/check/routing.h"
#include "src/kernels/check/weights.h"

namespace moray::check {
namespace {

int round_up_8(int value) {
  return (value + 7) / 8 * 8;
}

}  // namespace

// Several targets of either format and every output in one launch.
void check_project_rows(Checker& checker, const Subject& subject) {
  const int k = subject.constants.hidden, stride = round_up_8(k) + 8;
  const DType dtype = subject.constants.projection_fp8 ? DType::kF8E4M3 : DType::kBF16;
  const Site& site = checker.site();
  std::vector<OwnedWeights> weights;
  weights.push_back(random_weights(checker.random(), dtype, 322, k));
  weights.push_back(random_weights(checker.random(), DType::kBF16, 1, k));
  weights.push_back(random_weights(checker.random(), dtype, 256, k));
  weights.push_back(random_weights(checker.random(), DType::kBF16, 34, k));
  constexpr cuda::RowsOutput kOutputs[] = {cuda::RowsOutput::kBf16, cuda::RowsOutput::kF32,
                                           cuda::RowsOutput::kAddBf16, cuda::RowsOutput::kF32};
  std::vector<DeviceMatrix> matrices;
  for (const OwnedWeights& weight : weights) matrices.emplace_back(site, weight.view);
  for (const int tokens : checker.sizes({70}, {1, 33, 64, 130})) {
    auto x = checker.random().bf16_normals(int64_t{tokens} * stride);
    for (int t = 0; t < tokens; ++t) {  // nothing beyond the columns may be read
      for (int i = k; i < stride; ++i) x[size_t(t * stride + i)] = std::nanf("");
    }
    const auto device_x = upload(site, bf16_of(x));
    cuda::ProjectRowsParams params{};
    params.x = device_x.data();
    params.x_stride = stride;
    params.tokens = tokens;
    params.target_count = 4;
    std::vector<std::vector<float>> before;
    std::vector<DeviceArray<uint16_t>> outs;  // FP32 ones have two elements a value
    for (size_t i = 0; i < weights.size(); ++i) {
      const int64_t count = tokens * weights[i].view.rows;
      before.push_back(checker.random().bf16_normals(count));
      if (kOutputs[i] == cuda::RowsOutput::kAddBf16) {
        outs.push_back(upload(site, bf16_of(before[i])));
      } else {
        outs.emplace_back(site, size_t(count) * (kOutputs[i] == cuda::RowsOutput::kF32 ? 2 : 1));
      }
      params.targets[i] = {matrices[i].matrix(), outs[i].data(),
                           static_cast<int>(weights[i].view.rows), kOutputs[i], 0};
    }
    cuda::project_rows(checker.stream(), subject.prefill, params);
    for (size_t i = 0; i < weights.size(); ++i) {
      const MatrixView& view = weights[i].view;
      const auto found = outs[i].read();
      const auto value = [&](int64_t at) {
        if (kOutputs[i] != cuda::RowsOutput::kF32) return bf16_to_float(found[size_t(at)]);
        float single;
        std::memcpy(&single, found.data() + 2 * at, sizeof single);
        return single;
      };
      checker.compare(
          "project_rows", "an output", tokens * view.rows, k, [&](int64_t at, Worst& w) {
            const Product sum = product(view, at % view.rows, x.data() + at / view.rows * stride);
            const bool adds = kOutputs[i] == cuda::RowsOutput::kAddBf16;
            const double expected = sum.value + (adds ? before[i][size_t(at)] : 0);
            const bool rounds = kOutputs[i] != cuda::RowsOutput::kF32;
            w.take(value(at), expected,
                   sum.error() + (rounds ? bf16_rounding(expected, sum.error()) : 0));
          });
    }
  }
}

// Logits that give one expert all tokens and leave another without any.
void check_experts_rows(Checker& checker, const Subject& subject) {
  const cuda::Constants& c = subject.constants;
  const Site& site = checker.site();
  Random& random = checker.random();
  const auto dtype = [](bool is_fp8) { return is_fp8 ? DType::kF8E4M3 : DType::kBF16; };
  const ExpertSet experts(site, random, dtype(c.expert_fp8), c.hidden, c.expert_dim, c.experts);
  std::unique_ptr<ExpertSet> shared;
  if (c.shared_dim > 0) {
    shared =
        std::make_unique<ExpertSet>(site, random, dtype(c.shared_fp8), c.hidden, c.shared_dim, 1);
  }
  const int stride = round_up_8(c.expert_dim), shared_stride = round_up_8(c.shared_dim);
  for (const int tokens : checker.sizes({70}, {1, 37, 150})) {
    for (const int tile_rows : {32, 64}) {
      const int pairs = tokens * c.top_k;
      const auto x = random.bf16_normals(int64_t{tokens} * c.hidden);
      auto logits = random.normals(int64_t{tokens} * c.experts, 2);
      for (int t = 0; t < tokens; ++t) {
        logits[size_t(t) * size_t(c.experts)] = 50;
        logits[size_t(t) * size_t(c.experts) + 1] = -50;
      }
      std::vector<Choice> choices;
      for (int t = 0; t < tokens; ++t) {
        choices.push_back(choose(c, logits.data() + int64_t{t} * c.experts));
      }
      const auto device_x = upload(site, bf16_of(x));
      const auto device_logits = upload(site, logits);
      const DevicePlan plan(site, subject.prefill.shape, tokens, tile_rows);
      cuda::RouteRowsParams route{};
      route.logits = device_logits.data();
      route.logits_stride = c.experts;
      route.shared_stride = 1;
      route.tokens = tokens;
      route.plan = plan.plan();
      cuda::route_rows(checker.stream(), subject.prefill, route);
      const DeviceArray<uint16_t> inner(site, size_t(pairs) * size_t(stride)),
          shared_inner(site, size_t(tokens) * size_t(shared_stride)),
          out(site, size_t(pairs) * size_t(c.hidden)),
          shared_out(site, shared ? size_t(tokens) * size_t(c.hidden) : 0);
      cuda::GateUpRowsParams up{};
      up.x = device_x.data();
      up.x_stride = c.hidden;
      up.tokens = tokens;
      up.top_k = c.top_k;
      up.experts = experts.records();
      if (shared) up.shared = shared->records();
      up.plan = plan.plan();
      up.inner = inner.data();
      up.shared_inner = shared_inner.data();
      up.inner_stride = stride;
      up.shared_stride = shared_stride;
      cuda::gate_up_rows(checker.stream(), subject.prefill, up);
      cuda::DownRowsParams down{};
      down.inner = inner.data();
      down.shared_inner = shared_inner.data();
      down.inner_stride = stride;
      down.shared_stride = shared_stride;
      down.tokens = tokens;
      down.top_k = c.top_k;
      down.experts = up.experts;
      down.shared = up.shared;
      down.plan = plan.plan();
      down.out = out.data();
      down.shared_out = shared_out.data();
      cuda::down_rows(checker.stream(), subject.prefill, down);

      const auto row_of = plan.read(plan.plan().row_of, pairs);
      const auto inners = floats_of(inner.read()), shared_inners = floats_of(shared_inner.read());
      const auto outs = floats_of(out.read()), shared_outs = floats_of(shared_out.read());
      const auto judge_up = [&](const ExpertView& expert, int64_t token, int64_t n, float found,
                                Worst& w) {
        const float* const row = x.data() + token * c.hidden;
        const Product gate = product(expert.gate, n, row), upper = product(expert.up, n, row);
        const Estimate y = swiglu({gate.value, gate.error()}, {upper.value, upper.error()});
        w.take(found, y.value, y.error + bf16_rounding(y.value, y.error));
      };
      const auto judge_down = [&](const ExpertView& expert, const float* row, int64_t n,
                                  float found, Worst& w) {
        const Product sum = product(expert.down, n, row);
        w.take(found, sum.value, sum.error() + bf16_rounding(sum.value, sum.error()));
      };
      // Where the plan itself is wrong no row can be told from another (route_rows says that).
      const auto row = [&](int64_t pair) {
        return std::clamp<int64_t>(row_of[size_t(pair)], 0, pairs - 1) * stride;
      };
      const auto expert_of = [&](int64_t pair) -> const ExpertView& {
        return experts.view(choices[size_t(pair / c.top_k)].ids[size_t(pair % c.top_k)]);
      };
      checker.compare("gate_up_rows", "an inner", int64_t{pairs} * c.expert_dim, 2 * c.hidden,
                      [&](int64_t i, Worst& w) {
                        const int64_t pair = i / c.expert_dim, n = i % c.expert_dim;
                        judge_up(expert_of(pair), pair / c.top_k, n, inners[size_t(row(pair) + n)],
                                 w);
                      });
      checker.compare("down_rows", "an output", int64_t{pairs} * c.hidden, c.expert_dim,
                      [&](int64_t i, Worst& w) {
                        const int64_t pair = i / c.hidden;
                        judge_down(expert_of(pair), inners.data() + row(pair), i % c.hidden,
                                   outs[size_t(i)], w);
                      });
      if (!shared) continue;
      checker.compare("gate_up_rows", "the shared expert's inner", int64_t{tokens} * c.shared_dim,
                      2 * c.hidden, [&](int64_t i, Worst& w) {
                        const int64_t t = i / c.shared_dim, n = i % c.shared_dim;
                        judge_up(shared->view(0), t, n,
                                 shared_inners[size_t(t * shared_stride + n)], w);
                      });
      checker.compare("down_rows", "the shared expert's output", int64_t{tokens} * c.hidden,
                      c.shared_dim, [&](int64_t i, Worst& w) {
                        judge_down(shared->view(0),
                                   shared_inners.data() + i / c.hidden * shared_stride,
                                   i % c.hidden, shared_outs[size_t(i)], w);
                      });
    }
  }
}

}  // namespace moray::check
