// route: logits by FP32 products, then softmax and top-k a token at a time.
#include <cmath>

#include "src/kernels/cpu/cpu.h"
#include "src/kernels/cpu/kernels.h"
#include "src/kernels/cpu/partition.h"

namespace moray::cpu {

namespace {

constexpr int64_t kUnitTokens = 16;
// With few tokens a larger router is multiplied by all threads, a smaller one by the caller.
constexpr int64_t kSerialGateBytes = 128 * 1024;

// The k largest of logits[0..experts) in descending order, lower index first among equals. A NaN is
// never larger, so the ids are distinct and in range whatever the logits are.
void choose(const float* logits, int64_t experts, int64_t top_k, int32_t* ids) {
  for (int64_t slot = 0; slot < top_k; ++slot) {
    int32_t best = -1;
    for (int32_t e = 0; e < experts; ++e) {
      if (std::find(ids, ids + slot, e) != ids + slot) continue;
      if (best < 0 || logits[e] > logits[best]) best = e;
    }
    ids[slot] = best;
  }
}

// logits become e^(logit - largest); their sum over all experts is returned.
float exponentiate(const Kernels& kernels, float* logits, int64_t experts, float largest) {
  for (int64_t e = 0; e < experts; ++e) logits[e] -= largest;
  kernels.exp(logits, experts, logits);
  float total = 0;
  for (int64_t e = 0; e < experts; ++e) total += logits[e];
  return total;
}

// Softmax is monotonic, so the choice is made on the logits; what underflows stays ordered.
void route_token(const Kernels& kernels, const RouteArgs& args, float* logits, int64_t t) {
  const int64_t experts = args.gate.rows;
  int32_t* ids = args.expert_ids + t * args.top_k;
  float* weights = args.expert_weights + t * args.top_k;
  choose(logits, experts, args.top_k, ids);
  const float all = exponentiate(kernels, logits, experts, logits[ids[0]]);
  float chosen = 0;
  for (int64_t i = 0; i < args.top_k; ++i) chosen += logits[ids[i]];
  // With a NaN among the logits `all` is NaN; normalised weights must show it too.
  const float divisor = args.normalise && !std::isnan(all) ? chosen : all;
  for (int64_t i = 0; i < args.top_k; ++i) weights[i] = logits[ids[i]] / divisor;
}

void multiply(const Kernels& kernels, const MatrixView& weight, const float* x, int64_t tokens,
              float* y, float* scratch) {
  LinearJob job = linear_job(weight, 0, weight.rows);
  job.x = x;
  job.x_stride = padded_k(weight.cols);
  job.tokens = tokens;
  job.y = y;
  job.y_stride = weight.rows;
  job.scratch = scratch;
  run_linear(kernels, Engine::kF32, weight.dtype, job);
}

}  // namespace

void route(const Context& context, const RouteArgs& args) {
  if (args.tokens == 0) return;
  const Kernels& kernels = *context.kernels;
  const int64_t hidden = args.gate.cols, experts = args.gate.rows, padded = padded_k(hidden);
  CHECK(args.top_k >= 1 && args.top_k <= experts, args.top_k, experts);
  CHECK(args.shared_gate.empty() || args.shared_gate.cols == hidden, args.shared_gate.cols);
  const int threads = context.pool->thread_count();
  const bool rows_first =
      args.tokens <= kUnitTokens && threads > 1 && args.gate.bytes() > kSerialGateBytes;
  Carver carver(args.workspace);
  float* const logits = carver.take<float>(args.tokens * experts);
  const int64_t worker_floats = carved(kUnitTokens * padded) + carved(kLinearTileRows * padded);
  float* const worker_space = carver.take<float>(threads * worker_floats);
  if (rows_first) {
    const LinearTarget target{.weight = args.gate, .y = logits, .y_stride = experts};
    linear(context, {.x = args.x,
                     .tokens = args.tokens,
                     .k = hidden,
                     .targets = {&target, 1},
                     .precision = Precision::kFloat32,
                     .workspace = args.workspace.subspan(
                         static_cast<size_t>(worker_space - args.workspace.data()))});
  }
  context.pool->run(divide_up(args.tokens, kUnitTokens), [&](int64_t unit, int worker) {
    const int64_t begin = unit * kUnitTokens, count = std::min(kUnitTokens, args.tokens - begin);
    float* const packed = worker_space + worker * worker_floats;
    float* const scratch = packed + carved(kUnitTokens * padded);
    for (int64_t t = 0; t < count; ++t) {
      kernels.pack_f32(args.x + (begin + t) * hidden, hidden, packed + t * padded, padded);
    }
    if (!rows_first) multiply(kernels, args.gate, packed, count, logits + begin * experts, scratch);
    for (int64_t t = begin; t < begin + count; ++t) {
      route_token(kernels, args, logits + t * experts, t);
    }
    if (args.shared_gate.empty()) return;
    multiply(kernels, args.shared_gate, packed, count, args.shared_weight + begin, scratch);
    kernels.sigmoid(args.shared_weight + begin, count, args.shared_weight + begin);
  });
}

}  // namespace moray::cpu

namespace moray {

int64_t route_workspace_floats(int64_t tokens, int64_t hidden, int64_t experts, int threads) {
  const int64_t padded = cpu::padded_k(hidden);
  const int64_t worker =
      cpu::carved(cpu::kUnitTokens * padded) + cpu::carved(cpu::kLinearTileRows * padded);
  return 2 * cpu::kCacheLineFloats + cpu::carved(tokens * experts) +
         std::max(threads * worker,
                  linear_workspace_floats(std::min(tokens, cpu::kUnitTokens), hidden, threads));
}

}  // namespace moray
