// Stand-ins of the decode kernels' launchers (src/kernels/cuda/decode.h).
#include <algorithm>
#include <cstring>
#include <numeric>

#include "src/kernels/cuda/decode.h"
#include "src/kernels/cuda/random_fill.h"
#include "tests/wiring/host_device.h"
#include "tests/wiring/host_math.h"

namespace moray::gpu {

// The two kernels that are launched without a launcher.
void run_kernel(std::string_view name, const void* params) {
  if (name != "random_fill") return;
  cuda::RandomFill p;
  std::memcpy(&p, params, sizeof p);
  for (int64_t row = 0; row < p.rows; ++row) {
    for (int64_t col = 0; col < p.stride; ++col) {
      const auto i = static_cast<uint64_t>(row * p.cols + col);
      const uint64_t word = cuda::random_word(p.key, i / 4);
      const float unit = cuda::random_unit(static_cast<unsigned>(word >> (16 * (i % 4))) & 0xffffu);
      const bool is_padding = col >= p.cols;
      const int64_t at = row * p.stride + col;
      if (p.format == int(cuda::Format::kBf16)) {
        static_cast<uint16_t*>(p.data)[at] = is_padding ? 0 : float_to_bf16(unit * p.amplitude);
        continue;
      }
      uint8_t best = 0;
      const float wanted = std::fabs(unit) * cuda::kRandomCodeMax;
      for (uint8_t code = 1; code < 0x7f; ++code) {
        const float distance = std::fabs(f8e4m3_to_float(code) - wanted);
        const float smallest = std::fabs(f8e4m3_to_float(best) - wanted);
        if (distance < smallest || (distance == smallest && code % 2 == 0)) best = code;
      }
      if (unit < 0) best = static_cast<uint8_t>(best | 0x80u);
      static_cast<uint8_t*>(p.data)[at] = is_padding ? uint8_t{0} : best;
    }
  }
  std::fill_n(p.scales, p.scale_count, p.amplitude / cuda::kRandomCodeMax);
}

}  // namespace moray::gpu

namespace moray::cuda {

HostConstants& host_constants() {
  static HostConstants constants;
  return constants;
}

HostRow normed(const uint16_t* residual, const float* weight) {
  const HostConstants& k = host_constants();
  HostRow x = from_bf16(residual, k.hidden);
  ref::rms_norm({.x = x.data(),
                 .weight = weight,
                 .rows = 1,
                 .dim = k.hidden,
                 .eps = k.eps,
                 .kind = k.zero_centred_norms ? NormKind::kZeroCentred : NormKind::kPlain,
                 .precision = Precision::kBfloat16,
                 .out = x.data()});
  return x;
}

HostRoute choose_experts(const float* logits) {
  const HostConstants& k = host_constants();
  std::vector<int32_t> order(static_cast<size_t>(k.experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  double sum_all = 0;
  for (const int32_t e : order) sum_all += std::exp(double(logits[e]) - logits[order[0]]);
  order.resize(static_cast<size_t>(k.top_k));
  HostRoute route{order, {}};
  double sum = 0;
  for (const int32_t e : order) sum += std::exp(double(logits[e]) - logits[order[0]]);
  const double divisor = k.normalise_top_k ? sum : sum_all;
  for (const int32_t e : order) {
    route.weights.push_back(
        static_cast<float>(std::exp(double(logits[e]) - logits[order[0]]) / divisor));
  }
  return route;
}

DecodeKernels find_decode_kernels(const gpu::KernelSet&, const DecodeShape& shape) {
  DecodeKernels kernels;
  kernels.shape = shape;
  return kernels;
}

void embed_step(gpu::Stream& stream, const DecodeKernels&, const EmbedParams& params) {
  gpu::enqueue(stream, [p = params] {
    for (int t = 0; t < p.tokens; ++t) {
      int id = p.step->tokens[t];
      if (id < 0 || id >= p.table.rows) id = 0;
      std::copy_n(static_cast<const uint16_t*>(p.table.data) + int64_t{id} * p.table.stride,
                  p.table.cols, p.residual + int64_t{t} * p.table.cols);
    }
  });
}

void norm_project(gpu::Stream& stream, const DecodeKernels&, const NormProjectParams& params) {
  gpu::enqueue(stream, [p = params] {
    for (int t = 0; t < p.tokens; ++t) {
      const HostRow x = normed(p.residual + int64_t{t} * host_constants().hidden, p.norm_weight);
      for (int i = 0; i < p.target_count; ++i) {
        const HostRow y = product(p.targets[i].weight, x);
        std::copy(y.begin(), y.end(), p.targets[i].y + int64_t{t} * p.targets[i].y_stride);
      }
    }
  });
}

void project_add(gpu::Stream& stream, const DecodeKernels&, const ProjectAddParams& params) {
  gpu::enqueue(stream, [p = params] {
    for (int t = 0; t < p.tokens; ++t) {
      const HostRow x = from_bf16(p.x + int64_t{t} * p.weight.cols, p.weight.cols);
      uint16_t* residual = p.residual + int64_t{t} * p.weight.rows;
      HostRow sum = from_bf16(residual, p.weight.rows);
      const HostRow y = product(p.weight, x);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += y[i];
      to_bf16(sum, residual);
    }
  });
}

namespace {
uint16_t* inner_slot(const RoutingBuffers& routing, int token, int slot, int stride) {
  return routing.inner + (int64_t{token} * (host_constants().top_k + 1) + slot) * stride;
}
}  // namespace

void norm_route(gpu::Stream& stream, const DecodeKernels& kernels, const NormRouteParams& params) {
  const int stride = inner_stride(kernels.shape.expert_dim, kernels.shape.shared_dim);
  gpu::enqueue(stream, [p = params, stride] {
    const HostConstants& k = host_constants();
    for (int t = 0; t < p.tokens; ++t) {
      const HostRow x = normed(p.residual + int64_t{t} * k.hidden, p.norm_weight);
      to_bf16(x, p.routing.x + int64_t{t} * k.hidden);
      const HostRow logits = product(p.router, x);
      std::copy(logits.begin(), logits.end(), p.routing.logits + int64_t{t} * k.experts);
      if (p.shared.base == nullptr) continue;
      p.routing.shared_logit[t] = product(p.shared_gate, x)[0];
      to_bf16(inner_of(p.shared, 0, x), inner_slot(p.routing, t, k.top_k, stride));
    }
  });
}

void experts_gate_up(gpu::Stream& stream, const DecodeKernels& kernels,
                     const ExpertsParams& params) {
  const int stride = inner_stride(kernels.shape.expert_dim, kernels.shape.shared_dim);
  gpu::enqueue(stream, [p = params, stride] {
    const HostConstants& k = host_constants();
    for (int t = 0; t < p.tokens; ++t) {
      const HostRoute route = choose_experts(p.routing.logits + int64_t{t} * k.experts);
      const HostRow x = from_bf16(p.routing.x + int64_t{t} * k.hidden, k.hidden);
      for (int slot = 0; slot < k.top_k; ++slot) {
        to_bf16(inner_of(p.experts, route.ids[static_cast<size_t>(slot)], x),
                inner_slot(p.routing, t, slot, stride));
      }
    }
  });
}

void experts_down(gpu::Stream& stream, const DecodeKernels& kernels, const ExpertsParams& params) {
  const int stride = inner_stride(kernels.shape.expert_dim, kernels.shape.shared_dim);
  gpu::enqueue(stream, [p = params, stride] {
    const HostConstants& k = host_constants();
    for (int t = 0; t < p.tokens; ++t) {
      const HostRoute route = choose_experts(p.routing.logits + int64_t{t} * k.experts);
      uint16_t* residual = p.residual + int64_t{t} * k.hidden;
      HostRow sum = from_bf16(residual, k.hidden);
      const auto add = [&](const ExpertRecords& records, int expert, int slot, float weight) {
        const HostRow inner = from_bf16(inner_slot(p.routing, t, slot, stride), records.width);
        const HostRow y = product(record_matrix(records, expert, 2, k.hidden), inner);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * y[i];
      };
      for (int slot = 0; slot < k.top_k; ++slot) {
        const auto at = static_cast<size_t>(slot);
        add(p.experts, route.ids[at], slot, route.weights[at]);
      }
      if (p.shared.base != nullptr) {
        add(p.shared, 0, k.top_k, static_cast<float>(ref::sigmoid(p.routing.shared_logit[t])));
      }
      to_bf16(sum, residual);
    }
  });
}

int head_candidates(const DecodeKernels&) {
  return 3;
}

void norm_head(gpu::Stream& stream, const DecodeKernels& kernels, const NormHeadParams& params) {
  const int blocks = head_candidates(kernels);
  gpu::enqueue(stream, [p = params, blocks] {
    for (int r = 0; r < p.rows; ++r) {
      const int64_t t = p.tokens - p.rows + r;
      const HostRow x = normed(p.residual + t * host_constants().hidden, p.norm_weight);
      const HostRow logits = product(p.head, x);
      std::copy(logits.begin(), logits.end(), p.logits + int64_t{r} * p.head.rows);
      for (int b = 0; b < blocks && p.candidates != nullptr; ++b) {
        Candidate best{-INFINITY, -1};
        for (int id = b; id < p.sampleable.limit; id += blocks) {
          const unsigned banned =
              p.sampleable.banned == nullptr ? 0 : p.sampleable.banned[id / 32] >> (id % 32) & 1;
          const float logit = logits[static_cast<size_t>(id)];
          if (banned == 0 && logit > best.logit) best = {logit, id};
        }
        p.candidates[r * blocks + b] = best;
      }
    }
  });
}

void greedy_step(gpu::Stream& stream, const DecodeKernels&, const GreedyParams& params) {
  gpu::enqueue(stream, [p = params] {
    for (int r = 0; r < p.rows; ++r) {
      Candidate best{-INFINITY, -1};
      for (int b = 0; b < p.candidate_count; ++b) {
        const Candidate& found = p.candidates[r * p.candidate_count + b];
        const bool is_better = found.logit > best.logit ||
                               (found.logit == best.logit && found.id >= 0 && found.id < best.id);
        if (is_better) best = found;
      }
      p.chosen[r] = best.id;
    }
    if (p.step == nullptr) return;
    p.step->position += p.step->count;
    p.step->count = 1;
    p.step->tokens[0] = p.chosen[p.rows - 1];
    if (p.ring == nullptr) return;
    const auto position = static_cast<unsigned long long>(p.step->position);
    p.ring[position % static_cast<unsigned>(p.ring_entries)] =
        position << 32 | static_cast<unsigned>(p.chosen[p.rows - 1]);
  });
}

}  // namespace moray::cuda
