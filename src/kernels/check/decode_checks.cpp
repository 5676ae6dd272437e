// Checks of a step's matrix products, its routing and its greedy choice.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/kernels/check/checks.h"
#include "src/kernels/check/routing.h"
#include "src/kernels/check/weights.h"

namespace moray::check {
namespace {

using cuda::kStepTokensMax;

const std::vector<int> kFew = {1, 3, 13};  // one of each compilation
const std::vector<int> kMany = {1, 2, 3, 8, 9, 16};

DType dtype_of(bool is_fp8) {
  return is_fp8 ? DType::kF8E4M3 : DType::kBF16;
}

// The residual stream of 16 tokens, one of them faint and one with an outlier, and a norm's weight.
struct StepInputs {
  StepInputs(Checker& checker, const cuda::Constants& c)
      : hidden(c.hidden),
        residual(checker.random().bf16_normals(int64_t{kStepTokensMax} * c.hidden, 2)),
        norm(checker.random().normals(c.hidden, 0.2f)) {
    for (int i = 0; i < hidden; ++i) {
      residual[size_t(hidden + i)] = round_to_bf16(residual[size_t(hidden + i)] * 1e-3f);
    }
    residual[size_t(2 * hidden + 5)] = 3008;
    if (!c.zero_centred_norms) {
      for (float& weight : norm) weight += 1;
    }
    normed = rms_normed(c, residual, norm);
  }
  const float* x(int64_t token) const { return normed.data() + token * hidden; }

  int hidden;
  std::vector<float> residual, norm, normed;
};

// A normed activation may fall on the other side of a rounding boundary than the oracle's, one in
// 2^13, and none of a step's outputs says which did: three of the largest terms are allowed for.
double flipped(const Product& sum) {
  return 3 * kBf16Spacing * sum.largest_term;
}

}  // namespace

void check_embed_step(Checker& checker, const Subject& subject) {
  const int hidden = subject.constants.hidden, rows = 320;
  const OwnedWeights table = random_weights(checker.random(), DType::kBF16, rows, hidden);
  const DeviceMatrix matrix(checker.site(), table.view);
  for (const int tokens : checker.sizes({16}, kMany)) {
    cuda::Step step{.position = 7, .count = tokens, .tokens = {}};
    for (int& token : step.tokens) token = static_cast<int>(checker.random().below(rows));
    step.tokens[0] = tokens > 2 ? -1 : 0;
    const auto device_step = upload(checker.site(), std::vector<cuda::Step>{step});
    const DeviceArray<uint16_t> residual(checker.site(), size_t(tokens * hidden));
    cuda::embed_step(checker.stream(), subject.decode,
                     {device_step.data(), matrix.matrix(), residual.data(), tokens});
    const auto found = floats_of(residual.read());
    checker.compare("embed_step", "a row", int64_t{tokens} * hidden, 1, [&](int64_t i, Worst& w) {
      const int row = std::max(0, step.tokens[i / hidden]);
      w.take_equal(found[size_t(i)], ref::weight_at(table.view, row, i % hidden));
    });
  }
}

void check_norm_project(Checker& checker, const Subject& subject) {
  const cuda::Constants& c = subject.constants;
  const StepInputs in(checker, c);
  const auto residual = upload(checker.site(), bf16_of(in.residual));
  const auto norm = upload(checker.site(), in.norm);
  const DType dtype = dtype_of(c.projection_fp8);
  std::vector<OwnedWeights> weights;
  weights.push_back(random_weights(checker.random(), dtype, 517, c.hidden));
  weights.push_back(random_weights(checker.random(), dtype, 128, c.hidden));
  weights.push_back(random_weights(checker.random(), DType::kBF16, 34, c.hidden));
  std::vector<DeviceMatrix> matrices;
  for (const OwnedWeights& weight : weights) matrices.emplace_back(checker.site(), weight.view);
  for (const int tokens : checker.sizes(kFew, kMany)) {
    cuda::NormProjectParams params{};
    params.residual = residual.data();
    params.norm_weight = norm.data();
    params.target_count = 3;
    params.tokens = tokens;
    std::vector<DeviceArray<float>> outs;
    for (size_t i = 0; i < weights.size(); ++i) {
      const int rows = static_cast<int>(weights[i].view.rows);
      outs.emplace_back(checker.site(), size_t(tokens * rows));
      params.targets[i] = {matrices[i].matrix(), outs[i].data(), rows, 0, 0};
    }
    cuda::norm_project(checker.stream(), subject.decode, params);
    for (size_t i = 0; i < weights.size(); ++i) {
      const MatrixView& view = weights[i].view;
      const auto found = outs[i].read();
      checker.compare("norm_project", i < 2 ? "a projection" : "a BF16 projection",
                      tokens * view.rows, view.cols, [&](int64_t at, Worst& w) {
                        const Product sum = product(view, at % view.rows, in.x(at / view.rows));
                        w.take(found[size_t(at)], sum.value, sum.step_error() + flipped(sum));
                      });
    }
  }
}

void check_project_add(Checker& checker, const Subject& subject) {
  const cuda::Constants& c = subject.constants;
  Random& random = checker.random();
  std::vector<int> widths;
  if (c.heads > 0) widths.push_back(c.heads * c.head_dim);
  const int delta_width = c.value_heads * c.value_dim;
  if (delta_width > 0 && (widths.empty() || widths[0] != delta_width))
    widths.push_back(delta_width);
  for (const int k : widths) {
    const OwnedWeights weight = random_weights(random, dtype_of(c.projection_fp8), c.hidden, k);
    const DeviceMatrix matrix(checker.site(), weight.view);
    for (const int tokens : checker.sizes(kFew, kMany)) {
      const auto x = random.bf16_normals(int64_t{tokens} * k);
      const auto before = random.bf16_normals(int64_t{tokens} * c.hidden);
      const auto device_x = upload(checker.site(), bf16_of(x));
      const auto residual = upload(checker.site(), bf16_of(before));
      cuda::project_add(checker.stream(), subject.decode,
                        {.x = device_x.data(),
                         .weight = matrix.matrix(),
                         .residual = residual.data(),
                         .tokens = tokens});
      const auto found = floats_of(residual.read());
      checker.compare(
          "project_add", "the residual", int64_t{tokens} * c.hidden, k, [&](int64_t i, Worst& w) {
            const Product sum = product(weight.view, i % c.hidden, x.data() + i / c.hidden * k);
            const double expected = before[size_t(i)] + sum.value;
            w.take(found[size_t(i)], expected,
                   sum.step_error() + bf16_rounding(expected, sum.step_error()));
          });
    }
  }
}

namespace {

// The three kernels of a layer's feed-forward half, in their order, and what they left.
struct ExpertsRun {
  std::vector<float> x, logits, shared_logit, inner, weights, shared_weight, residual;
  std::vector<int> ids;
};

struct StepExperts {
  StepExperts(Checker& checker, const cuda::Constants& c)
      : experts(checker.site(), checker.random(), dtype_of(c.expert_fp8), c.hidden, c.expert_dim,
                c.experts),
        router(random_weights(checker.random(), DType::kBF16, c.experts, c.hidden)),
        device_router(checker.site(), router.view) {
    if (c.shared_dim == 0) return;
    shared = std::make_unique<ExpertSet>(checker.site(), checker.random(), dtype_of(c.shared_fp8),
                                         c.hidden, c.shared_dim, 1);
    shared_gate = random_weights(checker.random(), DType::kBF16, 1, c.hidden);
    device_gate = std::make_unique<DeviceMatrix>(checker.site(), shared_gate.view);
  }
  ExpertSet experts;
  OwnedWeights router, shared_gate;
  DeviceMatrix device_router;
  std::unique_ptr<ExpertSet> shared;
  std::unique_ptr<DeviceMatrix> device_gate;
};

ExpertsRun run_experts(Checker& checker, const Subject& subject, const StepInputs& in,
                       const StepExperts& weights, int tokens) {
  const cuda::Constants& c = subject.constants;
  const Site& site = checker.site();
  const auto count = size_t(tokens), top_k = size_t(c.top_k);
  const auto residual =
      upload(site, bf16_of(std::span(in.residual).first(count * size_t(c.hidden))));
  const auto norm = upload(site, in.norm);
  const DeviceArray<uint16_t> x(site, count * size_t(c.hidden));
  const DeviceArray<float> logits(site, count * size_t(c.experts)), shared_logit(site, count),
      expert_weights(site, count * top_k), shared_weight(site, count);
  const DeviceArray<int> ids(site, count * top_k);
  const size_t stride = size_t(cuda::inner_stride(c.expert_dim, c.shared_dim));
  const DeviceArray<uint16_t> inner(site, count * (top_k + 1) * stride);
  const cuda::RoutingBuffers routing{
      x.data(),   logits.data(),         shared_logit.data(), inner.data(),
      ids.data(), expert_weights.data(), shared_weight.data()};
  cuda::NormRouteParams route{};
  route.residual = residual.data();
  route.norm_weight = norm.data();
  route.router = weights.device_router.matrix();
  if (weights.shared) route.shared_gate = weights.device_gate->matrix();
  if (weights.shared) route.shared = weights.shared->records();
  route.routing = routing;
  route.tokens = tokens;
  cuda::norm_route(checker.stream(), subject.decode, route);
  const cuda::ExpertsParams params{.experts = weights.experts.records(),
                                   .shared = route.shared,
                                   .routing = routing,
                                   .residual = residual.data(),
                                   .tokens = tokens};
  cuda::experts_gate_up(checker.stream(), subject.decode, params);
  cuda::experts_down(checker.stream(), subject.decode, params);
  return {floats_of(x.read()),        logits.read(),
          shared_logit.read(),        floats_of(inner.read()),
          expert_weights.read(),      shared_weight.read(),
          floats_of(residual.read()), ids.read()};
}

}  // namespace

void check_experts_step(Checker& checker, const Subject& subject) {
  const cuda::Constants& c = subject.constants;
  const StepInputs in(checker, c);
  const StepExperts weights(checker, c);
  const int64_t hidden = c.hidden, slots = c.top_k + (c.shared_dim > 0 ? 1 : 0);
  const int64_t stride = cuda::inner_stride(c.expert_dim, c.shared_dim);
  for (const int tokens : checker.sizes(kFew, kMany)) {
    const ExpertsRun run = run_experts(checker, subject, in, weights, tokens);
    const auto x = [&](int64_t token) { return run.x.data() + token * hidden; };
    const auto inner = [&](int64_t token, int64_t slot) {
      return run.inner.data() + (token * (c.top_k + 1) + slot) * stride;
    };
    // By the logits found, as everything is computed from what its kernel was given.
    std::vector<Choice> choices;
    for (int t = 0; t < tokens; ++t) {
      choices.push_back(choose(c, run.logits.data() + int64_t{t} * c.experts));
    }
    const auto expert_of = [&](int64_t token, int64_t slot) -> const ExpertView& {
      if (slot == c.top_k) return weights.shared->view(0);
      return weights.experts.view(choices[size_t(token)].ids[size_t(slot)]);
    };
    checker.compare("norm_route", "the normed input", tokens * hidden, 1, [&](int64_t i, Worst& w) {
      w.take(run.x[size_t(i)], in.normed[size_t(i)], norm_bound(in.normed[size_t(i)]));
    });
    checker.compare(
        "norm_route", "a logit", int64_t{tokens} * c.experts, hidden, [&](int64_t i, Worst& w) {
          const Product sum = product(weights.router.view, i % c.experts, x(i / c.experts));
          w.take(run.logits[size_t(i)], sum.value, sum.step_error());
        });
    const auto judge_inner = [&](int64_t token, int64_t slot, int64_t row, Worst& w) {
      const ExpertView& expert = expert_of(token, slot);
      const Product gate = product(expert.gate, row, x(token));
      const Product up = product(expert.up, row, x(token));
      const Estimate y = swiglu({gate.value, gate.step_error()}, {up.value, up.step_error()});
      w.take(inner(token, slot)[row], y.value, y.error + bf16_rounding(y.value, y.error));
    };
    if (c.shared_dim > 0) {
      checker.compare("norm_route", "the shared gate's logit", tokens, hidden,
                      [&](int64_t t, Worst& w) {
                        const Product sum = product(weights.shared_gate.view, 0, x(t));
                        w.take(run.shared_logit[size_t(t)], sum.value, sum.step_error());
                      });
      checker.compare("norm_route", "the shared expert's inner", int64_t{tokens} * c.shared_dim,
                      2 * hidden, [&](int64_t i, Worst& w) {
                        judge_inner(i / c.shared_dim, c.top_k, i % c.shared_dim, w);
                      });
    }
    checker.compare("experts_gate_up", "the choice", int64_t{tokens} * c.top_k, 1,
                    [&](int64_t i, Worst& w) {
                      const Choice& choice = choices[size_t(i / c.top_k)];
                      const size_t slot = size_t(i % c.top_k);
                      w.take_equal(run.ids[size_t(i)], choice.ids[slot]);
                      w.take(run.weights[size_t(i)], choice.weights[slot],
                             choice.weights[slot] * kSoftmaxError);
                    });
    if (c.shared_dim > 0) {
      checker.compare("experts_gate_up", "the shared weight", tokens, 1, [&](int64_t t, Worst& w) {
        w.take(run.shared_weight[size_t(t)], ref::sigmoid(run.shared_logit[size_t(t)]), 0x1p-20);
      });
    }
    checker.compare("experts_gate_up", "an inner", int64_t{tokens} * c.top_k * c.expert_dim,
                    2 * hidden, [&](int64_t i, Worst& w) {
                      const int64_t pair = i / c.expert_dim;
                      judge_inner(pair / c.top_k, pair % c.top_k, i % c.expert_dim, w);
                    });
    checker.compare(
        "experts_down", "the residual", tokens * hidden, c.top_k * c.expert_dim + c.shared_dim,
        [&](int64_t i, Worst& w) {
          const int64_t t = i / hidden;
          double sum = in.residual[size_t(i)], error = 0;
          for (int64_t slot = 0; slot < slots; ++slot) {
            const Product down = product(expert_of(t, slot).down, i % hidden, inner(t, slot));
            const double weight = slot == c.top_k ? ref::sigmoid(run.shared_logit[size_t(t)])
                                                  : choices[size_t(t)].weights[size_t(slot)];
            sum += weight * down.value;
            error += weight * (down.step_error() + kSoftmaxError * std::abs(down.value)) +
                     double(slots + 1) * kF32Epsilon * std::abs(sum);
          }
          w.take(run.residual[size_t(i)], sum, error + bf16_rounding(sum, error));
        });
  }
}

// A head of few rows, some of them banned. The choice is held to the logits found.
void check_head(Checker& checker, const Subject& subject) {
  const cuda::Constants& c = subject.constants;
  constexpr int kRingEntries = 8, kPosition = 41;
  const StepInputs in(checker, c);
  const int vocab = std::min(c.vocab_rows, 2501), limit = vocab - 3;
  const OwnedWeights head = random_weights(checker.random(), dtype_of(c.head_fp8), vocab, c.hidden);
  const DeviceMatrix matrix(checker.site(), head.view);
  const auto residual = upload(checker.site(), bf16_of(in.residual));
  const auto norm = upload(checker.site(), in.norm);
  std::vector<unsigned> banned(size_t(vocab + 31) / 32, 0);
  for (unsigned& word : banned) word = 1u << checker.random().below(32);
  const auto device_banned = upload(checker.site(), banned);
  const cuda::Sampleable sampleable{limit, device_banned.data()};
  for (const int rows : checker.sizes(kFew, kMany)) {
    const DeviceArray<float> logits(checker.site(), size_t(rows * vocab));
    const int candidate_count = cuda::head_candidates(subject.decode);
    const DeviceArray<cuda::Candidate> candidates(checker.site(), size_t(rows * candidate_count));
    const DeviceArray<int> chosen(checker.site(), size_t(rows));
    const auto step = upload(
        checker.site(),
        std::vector<cuda::Step>{{.position = kPosition, .count = kStepTokensMax, .tokens = {}}});
    auto ring = gpu::PinnedMemory::allocate(checker.site().device, kRingEntries * 8);
    checker.site().note(ring.status());
    if (!ring.ok()) return;
    auto* const entries = reinterpret_cast<unsigned long long*>(ring->data());
    cuda::norm_head(checker.stream(), subject.decode,
                    {.residual = residual.data(),
                     .norm_weight = norm.data(),
                     .head = matrix.matrix(),
                     .sampleable = sampleable,
                     .logits = logits.data(),
                     .candidates = candidates.data(),
                     .tokens = kStepTokensMax,
                     .rows = rows});
    cuda::greedy_step(checker.stream(), subject.decode,
                      {.candidates = candidates.data(),
                       .candidate_count = candidate_count,
                       .sampleable = sampleable,
                       .chosen = chosen.data(),
                       .step = step.data(),
                       .ring = entries,
                       .ring_entries = kRingEntries,
                       .rows = rows});
    const auto found = logits.read();
    const auto ids = chosen.read();
    const cuda::Step next = step.read()[0];
    checker.compare("norm_head", "a logit", int64_t{rows} * vocab, c.hidden,
                    [&](int64_t i, Worst& w) {
                      const Product sum =
                          product(head.view, i % vocab, in.x(kStepTokensMax - rows + i / vocab));
                      w.take(found[size_t(i)], sum.value, sum.step_error() + flipped(sum));
                    });
    checker.compare("greedy_step", "the choice", rows, vocab, [&](int64_t r, Worst& w) {
      int best = -1;
      const float* const row = found.data() + r * vocab;
      for (int id = 0; id < limit; ++id) {
        if (banned[size_t(id) / 32] >> (id % 32) & 1) continue;
        if (best < 0 || row[id] > row[best]) best = id;
      }
      w.take_equal(ids[size_t(r)], best);
    });
    const int position = kPosition + kStepTokensMax, last = ids.back();
    checker.compare("greedy_step", "the next step", 1, 1, [&](int64_t, Worst& w) {
      w.take_equal(next.position, position);
      w.take_equal(next.count, 1);
      w.take_equal(next.tokens[0], last);
      w.take_equal(double(entries[position % kRingEntries]),
                   double(uint64_t(position) << 32 | unsigned(last)));
    });
  }
}

}  // namespace moray::check
