// Stand-ins of the prefill stages' launchers (src/kernels/cuda/prefill.h, w8a8.h).
#include <algorithm>

#include "src/kernels/cuda/prefill.h"
#include "src/kernels/cuda/w8a8.h"
#include "tests/wiring/host_device.h"
#include "tests/wiring/host_math.h"

namespace moray::cuda {
namespace {

uint8_t nearest_code(float value) {
  uint8_t best = 0;
  const float magnitude = std::min(std::fabs(value), 448.0f);
  for (uint8_t code = 1; code < 0x7f; ++code) {
    if (std::fabs(f8e4m3_to_float(code) - magnitude) <
        std::fabs(f8e4m3_to_float(best) - magnitude)) {
      best = code;
    }
  }
  return value < 0 ? static_cast<uint8_t>(best | 0x80u) : best;
}

void put_codes(const HostRow& x, const QuantisedRows& q, int64_t row) {
  for (size_t begin = 0; begin < x.size(); begin += 128) {
    float largest = 0;
    for (size_t i = begin; i < begin + 128; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float scale = largest / 448;
    q.scales[static_cast<int64_t>(begin) / 128 * q.scale_stride + row] = scale;
    for (size_t i = begin; i < begin + 128; ++i) {
      q.codes[row * q.cols + static_cast<int64_t>(i)] = scale > 0 ? nearest_code(x[i] / scale) : 0;
    }
  }
}

HostRow codes_row(const QuantisedRows& q, int64_t row) {
  HostRow x;
  for (int64_t i = 0; i < q.cols; ++i) {
    x.push_back(f8e4m3_to_float(q.codes[row * q.cols + i]) *
                q.scales[i / 128 * q.scale_stride + row]);
  }
  return x;
}

// out (+)= y in the form asked for.
void put(const HostRow& y, void* out, int64_t at, int output) {
  if (output == int(RowsOutput::kF32)) {
    std::copy(y.begin(), y.end(), static_cast<float*>(out) + at);
    return;
  }
  auto* row = static_cast<uint16_t*>(out) + at;
  for (size_t i = 0; i < y.size(); ++i) {
    const float before = output == int(RowsOutput::kAddBf16) ? bf16_to_float(row[i]) : 0;
    row[i] = float_to_bf16(before + y[i]);
  }
}

// Expert of each sorted row.
std::vector<int> experts_of(const ExpertTile* tiles, int count, int rows) {
  std::vector<int> experts(static_cast<size_t>(rows), -1);
  for (int i = 0; i < count; ++i) {
    for (int r = 0; r < tiles[i].rows; ++r) {
      experts[static_cast<size_t>(tiles[i].first_row + r)] = tiles[i].expert;
    }
  }
  return experts;
}

}  // namespace

PrefillKernels find_prefill_kernels(const gpu::KernelSet&, const PrefillShape& shape) {
  PrefillKernels kernels;
  kernels.shape = shape;
  return kernels;
}
int expert_tile_rows(const PrefillShape&, int) {
  return 32;
}
int64_t expert_plan_bytes(const PrefillShape& shape, int tokens, int tile_rows) {
  return reinterpret_cast<intptr_t>(expert_plan_at(shape, tokens, tile_rows, nullptr).row_of) +
         int64_t{4} * tokens * shape.top_k;
}
ExpertPlan expert_plan_at(const PrefillShape& shape, int tokens, int tile_rows, char* base) {
  const int pairs = tokens * shape.top_k;
  const auto take = [&base](int64_t bytes) {
    char* at = base;
    base += (bytes + 255) / 256 * 256;
    return at;
  };
  ExpertPlan plan{};
  plan.expert_ids = reinterpret_cast<int*>(take(4 * pairs));
  plan.expert_weights = reinterpret_cast<float*>(take(4 * pairs));
  plan.shared_weight = reinterpret_cast<float*>(take(4 * tokens));
  plan.counts = reinterpret_cast<int*>(take(4 * shape.experts));
  plan.tiles = reinterpret_cast<ExpertTile*>(
      take(static_cast<int64_t>(sizeof(ExpertTile)) * (shape.experts + pairs / tile_rows + 1)));
  plan.tile_count = reinterpret_cast<int*>(take(4));
  plan.sorted = reinterpret_cast<int*>(take(4 * pairs));
  plan.row_of = reinterpret_cast<int*>(take(4 * pairs));
  plan.tile_rows = tile_rows;
  return plan;
}

void embed_rows(gpu::Stream& stream, const PrefillKernels&, const EmbedRowsParams& params) {
  gpu::enqueue(stream, [p = params] {
    const int hidden = host_constants().hidden;
    for (int r = 0; r < p.count; ++r) {
      std::copy_n(p.table + int64_t{p.tokens[r]} * p.table_stride, hidden,
                  p.out + int64_t{r} * hidden);
    }
  });
}

void norm_rows(gpu::Stream& stream, const PrefillKernels&, const NormRowsParams& params) {
  gpu::enqueue(stream, [p = params] {
    for (int r = 0; r < p.count; ++r) {
      const HostRow x = normed(p.x + int64_t{r} * host_constants().hidden, p.weight);
      if (p.out != nullptr) to_bf16(x, p.out + int64_t{r} * p.out_stride);
      if (p.quantised.codes != nullptr) put_codes(x, p.quantised, r);
    }
  });
}

void quantise_rows(gpu::Stream& stream, const PrefillKernels&, const QuantiseRowsParams& params) {
  gpu::enqueue(stream, [p = params] {
    for (int r = 0; r < p.count; ++r) {
      put_codes(from_bf16(p.x + int64_t{r} * p.x_stride, p.quantised.cols), p.quantised, r);
    }
  });
}

void gather_rows(gpu::Stream& stream, const PrefillKernels&, const GatherRowsParams& params) {
  gpu::enqueue(stream, [p = params] {
    for (int r = 0; r < p.count; ++r) {
      const int64_t from = p.sorted[r] / p.top_k;
      std::copy_n(p.x.codes + from * p.x.cols, p.x.cols, p.out.codes + int64_t{r} * p.x.cols);
      for (int s = 0; s < p.x.cols / 128; ++s) {
        p.out.scales[s * p.out.scale_stride + r] = p.x.scales[s * p.x.scale_stride + from];
      }
    }
  });
}

void project_rows(gpu::Stream& stream, const PrefillKernels&, ProjectRowsParams params) {
  gpu::enqueue(stream, [p = params] {
    for (int t = 0; t < p.tokens; ++t) {
      const HostRow x = from_bf16(p.x + int64_t{t} * p.x_stride, p.targets[0].weight.cols);
      for (int i = 0; i < p.target_count; ++i) {
        const RowsTarget& target = p.targets[i];
        put(product(target.weight, x), target.out, int64_t{t} * target.out_stride,
            int(target.output));
      }
    }
  });
}

void route_rows(gpu::Stream& stream, const PrefillKernels&, const RouteRowsParams& params) {
  gpu::enqueue(stream, [p = params] {
    const HostConstants& k = host_constants();
    std::vector<std::vector<int>> pairs(static_cast<size_t>(k.experts));
    for (int t = 0; t < p.tokens; ++t) {
      const HostRoute route = choose_experts(p.logits + int64_t{t} * p.logits_stride);
      for (int slot = 0; slot < k.top_k; ++slot) {
        const int pair = t * k.top_k + slot;
        p.plan.expert_ids[pair] = route.ids[static_cast<size_t>(slot)];
        p.plan.expert_weights[pair] = route.weights[static_cast<size_t>(slot)];
        pairs[static_cast<size_t>(route.ids[static_cast<size_t>(slot)])].push_back(pair);
      }
      if (p.shared_logits != nullptr) {
        p.plan.shared_weight[t] =
            static_cast<float>(ref::sigmoid(p.shared_logits[int64_t{t} * p.shared_stride]));
      }
    }
    int row = 0;
    *p.plan.tile_count = 0;
    for (int e = 0; e < k.experts; ++e) {
      const auto& mine = pairs[static_cast<size_t>(e)];
      const int count = static_cast<int>(mine.size());
      for (int first = 0; first < count; first += p.plan.tile_rows) {
        p.plan.tiles[(*p.plan.tile_count)++] = {e, row + first,
                                                std::min(p.plan.tile_rows, count - first)};
      }
      for (const int pair : mine) {
        p.plan.sorted[row] = pair;
        p.plan.row_of[pair] = row++;
      }
    }
  });
}

void gate_up_rows(gpu::Stream& stream, const PrefillKernels&, GateUpRowsParams params) {
  gpu::enqueue(stream, [p = params] {
    const int hidden = host_constants().hidden;
    const int pairs = p.tokens * p.top_k;
    const auto experts = experts_of(p.plan.tiles, *p.plan.tile_count, pairs);
    for (int r = 0; r < pairs; ++r) {
      const int64_t t = p.plan.sorted[r] / p.top_k;
      const HostRow x = from_bf16(p.x + t * p.x_stride, hidden);
      to_bf16(inner_of(p.experts, experts[static_cast<size_t>(r)], x),
              p.inner + int64_t{r} * p.inner_stride);
    }
    for (int t = 0; t < p.tokens && p.shared.width > 0; ++t) {
      to_bf16(inner_of(p.shared, 0, from_bf16(p.x + int64_t{t} * p.x_stride, hidden)),
              p.shared_inner + int64_t{t} * p.shared_stride);
    }
  });
}

void down_rows(gpu::Stream& stream, const PrefillKernels&, DownRowsParams params) {
  gpu::enqueue(stream, [p = params] {
    const int hidden = host_constants().hidden;
    for (int pair = 0; pair < p.tokens * p.top_k; ++pair) {
      const Matrix down = record_matrix(p.experts, p.plan.expert_ids[pair], 2, hidden);
      const int64_t row = p.plan.row_of[pair];
      to_bf16(product(down, from_bf16(p.inner + row * p.inner_stride, p.experts.width)),
              p.out + int64_t{pair} * hidden);
    }
    for (int t = 0; t < p.tokens && p.shared.width > 0; ++t) {
      const HostRow inner =
          from_bf16(p.shared_inner + int64_t{t} * p.shared_stride, p.shared.width);
      to_bf16(product(record_matrix(p.shared, 0, 2, hidden), inner),
              p.shared_out + int64_t{t} * hidden);
    }
  });
}

void combine_rows(gpu::Stream& stream, const PrefillKernels&, const CombineRowsParams& params) {
  gpu::enqueue(stream, [p = params] {
    const HostConstants& k = host_constants();
    for (int64_t t = 0; t < p.tokens; ++t) {
      HostRow sum = from_bf16(p.residual + t * k.hidden, k.hidden);
      const auto add = [&](const uint16_t* row, float weight) {
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * bf16_to_float(row[i]);
      };
      for (int slot = 0; slot < k.top_k; ++slot) {
        const int64_t pair = t * k.top_k + slot;
        add(p.out + pair * k.hidden, p.expert_weights[pair]);
      }
      if (p.shared_out != nullptr) add(p.shared_out + t * k.hidden, p.shared_weight[t]);
      to_bf16(sum, p.residual + t * k.hidden);
    }
  });
}

W8a8Kernels find_w8a8_kernels(const gpu::KernelSet&, int arch, int multiprocessors) {
  W8a8Kernels kernels;
  kernels.arch = arch;
  kernels.multiprocessors = multiprocessors;
  return kernels;
}

void w8a8_dense(gpu::Stream& stream, const W8a8Kernels&, const W8a8Dense& params) {
  gpu::enqueue(stream, [p = params] {
    for (int t = 0; t < p.tokens; ++t) {
      const HostRow x = codes_row(p.x, t);
      for (int i = 0; i < p.target_count; ++i) {
        const W8a8Target& target = p.targets[i];
        put(product(target.weight, x), target.out, int64_t{t} * target.out_stride,
            int(target.output));
      }
    }
  });
}

void w8a8_gate_up(gpu::Stream& stream, const W8a8Kernels&, const W8a8GateUp& params) {
  gpu::enqueue(stream, [p = params] {
    const int rows = p.tiles == nullptr ? p.tokens : p.x.rows;
    const auto experts = p.tiles == nullptr ? std::vector<int>(static_cast<size_t>(rows), 0)
                                            : experts_of(p.tiles, *p.tile_count, rows);
    for (int r = 0; r < rows; ++r) {
      put_codes(inner_of(p.experts, experts[static_cast<size_t>(r)], codes_row(p.x, r)), p.inner,
                r);
    }
  });
}

void w8a8_down(gpu::Stream& stream, const W8a8Kernels&, const W8a8Down& params) {
  gpu::enqueue(stream, [p = params] {
    const int rows = p.tiles == nullptr ? p.tokens : p.inner.rows;
    const auto experts = p.tiles == nullptr ? std::vector<int>(static_cast<size_t>(rows), 0)
                                            : experts_of(p.tiles, *p.tile_count, rows);
    for (int r = 0; r < rows; ++r) {
      const Matrix down = record_matrix(p.experts, experts[static_cast<size_t>(r)], 2, p.columns);
      const int64_t to = p.out_row == nullptr ? r : p.out_row[r];
      put(product(down, codes_row(p.inner, r)), p.out, to * p.out_stride, int(W8a8Output::kBf16));
    }
  });
}

}  // namespace moray::cuda
