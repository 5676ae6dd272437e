// moe: assignments sorted by expert, so that each distinct expert is read once; then two loops,
// gate and up and their SiLU product over (group, rows), down and the weighted sum over rows.
//
// A group is at most kGroupTokens tokens of one expert. Assignments keep token order within an
// expert; position p of the sorted order owns row p of the hidden buffer, the shared expert's
// tokens own the rows after them.
#include <tuple>

#include "src/kernels/cpu/cpu.h"
#include "src/kernels/cpu/kernels.h"
#include "src/kernels/cpu/partition.h"

namespace moray::cpu {

namespace {

// Bounds a worker's scratch for gate and up; large enough that widening an expert's weights again
// for the next group does not show.
constexpr int64_t kGroupTokens = 128;
constexpr int64_t kGateRows = 64;         // most rows of a gate/up unit
constexpr int64_t kDownRows = 64;         // most rows of a down unit
constexpr int64_t kDownRowsPrefill = 16;  // keeps [assignments, rows] of FP32 in the second cache
constexpr int64_t kDecodeTokens = 8;

struct Group {
  int32_t expert;  // index into experts, or -1 for the shared one
  int32_t begin;   // first row of the hidden buffer
  int32_t count;
};

// One 4-byte plane each, so that a Carver can hand them out.
struct Plan {
  int32_t* position;      // [tokens * top_k] sorted position of assignment t * top_k + slot
  int32_t* token;         // [tokens * top_k + tokens] token of each hidden row
  int32_t* group_fields;  // [groups, 3]
  int64_t group_count;
  int64_t assignments;

  Group group(int64_t index) const {
    const int32_t* fields = group_fields + index * 3;
    return {fields[0], fields[1], fields[2]};
  }
};

struct Dimensions {
  int64_t inner;   // largest expert_dim, padded
  int64_t groups;  // most groups
  int64_t rows;    // hidden rows: assignments and shared tokens
};

Dimensions dimensions_of(const MoeArgs& args) {
  int64_t inner = args.shared.empty() ? 0 : args.shared.gate.rows;
  for (const ExpertView& expert : args.experts) inner = std::max(inner, expert.gate.rows);
  const int64_t assignments = args.tokens * args.top_k;
  const int64_t experts = std::min(static_cast<int64_t>(args.experts.size()), assignments);
  return {.inner = padded_k(inner),
          .groups =
              experts + divide_up(assignments, kGroupTokens) + divide_up(args.tokens, kGroupTokens),
          .rows = assignments + args.tokens};
}

int64_t scratch_floats(const MoeArgs& args, const Dimensions& size) {
  const int64_t widened = kLinearTileRows * std::max(padded_k(args.hidden), size.inner);
  // Both regimes, so that the size never falls as tokens rise.
  const int64_t decode_rows = std::min(args.tokens, kDecodeTokens) * (args.top_k + 1);
  const int64_t down = std::max(decode_rows * kDownRows, size.rows * kDownRowsPrefill);
  return carved(widened) + std::max(carved(2 * kGroupTokens * kGateRows), carved(down));
}

void add_groups(Plan& plan, int32_t expert, int64_t begin, int64_t count) {
  for (int64_t done = 0; done < count; done += kGroupTokens) {
    int32_t* fields = plan.group_fields + plan.group_count++ * 3;
    fields[0] = expert;
    fields[1] = static_cast<int32_t>(begin + done);
    fields[2] = static_cast<int32_t>(std::min(kGroupTokens, count - done));
  }
}

// Stable counting sort of the assignments by expert.
Plan make_plan(const MoeArgs& args, const Dimensions& size, Carver& carver) {
  const int64_t experts = static_cast<int64_t>(args.experts.size());
  Plan plan{};
  plan.assignments = args.tokens * args.top_k;
  plan.position = carver.take<int32_t>(plan.assignments);
  plan.token = carver.take<int32_t>(size.rows);
  plan.group_fields = carver.take<int32_t>(size.groups * 3);
  int32_t* const next = carver.take<int32_t>(experts + 1);
  std::fill(next, next + experts + 1, 0);
  for (int64_t i = 0; i < plan.assignments; ++i) {
    const int32_t id = args.expert_ids[i];
    CHECK(id >= 0 && id < experts, id, experts);
    ++next[id + 1];
  }
  for (int32_t e = 0; e < experts; ++e) {
    add_groups(plan, e, next[e], next[e + 1]);
    next[e + 1] += next[e];
  }
  for (int64_t i = 0; i < plan.assignments; ++i) {
    const int32_t position = next[args.expert_ids[i]]++;
    plan.position[i] = position;
    plan.token[position] = static_cast<int32_t>(i / args.top_k);
  }
  if (!args.shared.empty()) add_groups(plan, -1, plan.assignments, args.tokens);
  for (int64_t t = 0; t < args.tokens; ++t) {
    plan.token[plan.assignments + t] = static_cast<int32_t>(t);
  }
  return plan;
}

// The input and the hidden values as the products read them.
struct Buffers {
  PackedInput x;
  char* inner;  // [rows, inner_stride] as each expert's down matrix reads it; rows spaced for FP32
  int64_t inner_stride;
  float* scratch;
  int64_t scratch_stride;
};

const ExpertView& expert_of(const MoeArgs& args, const Group& group) {
  return group.expert < 0 ? args.shared : args.experts[size_t(group.expert)];
}

// Where row `row` of the hidden buffer starts.
void* inner_row(const Buffers& buffers, int64_t row) {
  return buffers.inner + row * buffers.inner_stride * int64_t{sizeof(float)};
}

// Elements between rows of the hidden buffer.
int64_t inner_stride(const Buffers& buffers, Engine engine) {
  return buffers.inner_stride * int64_t{sizeof(float)} / element_bytes(engine);
}

const char* row_start(const MatrixView& weight, int64_t row) {
  return static_cast<const char*>(weight.data) + row * weight.cols * dtype_bytes(weight.dtype);
}

// Asks for what this worker reads a little later. Rows of experts are short streams that begin
// anew every few kilobytes: the hardware's prefetchers see little of them.
void prefetch(const char* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

void gate_up_unit(const Kernels& kernels, const MoeArgs& args, const Plan& plan,
                  const Buffers& buffers, const Group& group, int64_t row, int64_t row_end,
                  const char* next_rows, int worker) {
  const ExpertView& expert = expert_of(args, group);
  float* const widened = buffers.scratch + worker * buffers.scratch_stride;
  float* const gate =
      widened + carved(kLinearTileRows * std::max(padded_k(args.hidden), buffers.inner_stride));
  float* const up = gate + kGroupTokens * kGateRows;
  const int64_t rows = row_end - row;
  const char* const up_rows = row_start(expert.up, row);
  if (args.tokens == 1) {
    // This unit's share of the down matrix, which someone reads in the next loop.
    const char* const down_rows = row_start(expert.down, row * args.hidden / expert.gate.rows);
    const char* const down_end = row_start(expert.down, row_end * args.hidden / expert.gate.rows);
    prefetch(down_rows, down_end - down_rows);
  }
  const auto products = {std::tuple{expert.gate, gate, up_rows}, {expert.up, up, next_rows}};
  for (const auto& [weight, y, next] : products) {
    const Engine engine = engine_for(kernels, args.precision, weight.dtype);
    LinearJob job = linear_job(weight, row, row_end);
    job.next = next;
    job.x = buffers.x.rows[static_cast<int>(engine)];
    job.x_stride = buffers.x.stride[static_cast<int>(engine)];
    job.x_rows = plan.token + group.begin;
    job.tokens = group.count;
    job.y = y;
    job.y_stride = rows;
    job.scratch = widened;
    run_linear(kernels, engine, weight.dtype, job);
  }
  const Engine engine = engine_for(kernels, args.precision, expert.down.dtype);
  kernels.silu_product({.gate = gate,
                        .up = up,
                        .tokens = group.count,
                        .rows = rows,
                        .stride = rows,
                        .out = inner_row(buffers, group.begin),
                        .out_stride = inner_stride(buffers, engine),
                        .out_column = row,
                        .engine = engine,
                        .round = args.precision == Precision::kBfloat16});
}

void down_unit(const Kernels& kernels, const MoeArgs& args, const Plan& plan,
               const Buffers& buffers, int64_t row, int64_t row_end, int worker) {
  float* const widened = buffers.scratch + worker * buffers.scratch_stride;
  float* const y =
      widened + carved(kLinearTileRows * std::max(padded_k(args.hidden), buffers.inner_stride));
  const int64_t rows = row_end - row;
  for (int64_t g = 0; g < plan.group_count; ++g) {
    const Group group = plan.group(g);
    const MatrixView& weight = expert_of(args, group).down;
    const Engine engine = engine_for(kernels, args.precision, weight.dtype);
    LinearJob job = linear_job(weight, row, row_end);
    if (g + 1 < plan.group_count) {
      job.next = row_start(expert_of(args, plan.group(g + 1)).down, row);
    }
    job.x = inner_row(buffers, group.begin);
    job.x_stride = inner_stride(buffers, engine);
    job.tokens = group.count;
    job.y = y + group.begin * rows;
    job.y_stride = rows;
    job.scratch = widened;
    run_linear(kernels, engine, weight.dtype, job);
  }
  const bool has_shared = !args.shared.empty();
  kernels.combine({.residual = args.residual + row,
                   .tokens = args.tokens,
                   .rows = rows,
                   .residual_stride = args.hidden,
                   .y = y,
                   .index = plan.position,
                   .weights = args.expert_weights,
                   .slots = args.top_k,
                   .shared_y = has_shared ? y + plan.assignments * rows : nullptr,
                   .shared_weight = args.shared_weight,
                   .round = args.precision == Precision::kBfloat16});
}

// Packs x for every engine that a group's gate or up matrix uses.
PackedInput pack_tokens(const Context& context, const MoeArgs& args, const Plan& plan,
                        float* space) {
  const int64_t padded = padded_k(args.hidden);
  PackedInput packed;
  for (int64_t g = 0; g < plan.group_count; ++g) {
    const ExpertView& expert = expert_of(args, plan.group(g));
    for (DType dtype : {expert.gate.dtype, expert.up.dtype}) {
      const Engine engine = engine_for(*context.kernels, args.precision, dtype);
      const int at = static_cast<int>(engine);
      if (packed.rows[at]) continue;
      packed.stride[at] = padded;
      if (engine == Engine::kF32 && padded == args.hidden) {
        packed.rows[at] = args.x;
        continue;
      }
      char* const rows = reinterpret_cast<char*>(space + at * carved(args.tokens * padded));
      packed.rows[at] = rows;
      context.pool->run(divide_up(args.tokens, 64), [&](int64_t unit, int) {
        for (int64_t t = unit * 64; t < std::min((unit + 1) * 64, args.tokens); ++t) {
          pack_row(*context.kernels, engine, args.x + t * args.hidden, args.hidden,
                   rows + t * padded * element_bytes(engine));
        }
      });
    }
  }
  return packed;
}

// Products read whole slices of 128: zeros where a group's hidden values end within one.
void clear_inner_ends(const Context& context, const MoeArgs& args, const Plan& plan,
                      const Buffers& buffers) {
  for (int64_t g = 0; g < plan.group_count; ++g) {
    const Group group = plan.group(g);
    const MatrixView& down = expert_of(args, group).down;
    if (down.cols % kScaleBlock == 0) continue;
    const Engine engine = engine_for(*context.kernels, args.precision, down.dtype);
    const int64_t size = element_bytes(engine), end = padded_k(down.cols) * size;
    for (int64_t row = group.begin; row < group.begin + group.count; ++row) {
      char* const start = static_cast<char*>(inner_row(buffers, row));
      std::fill(start + end - kScaleBlock * size, start + end, char{0});
    }
  }
}

Buffers make_buffers(const Context& context, const MoeArgs& args, const Dimensions& size,
                     const Plan& plan, Carver& carver) {
  Buffers buffers{};
  buffers.x =
      pack_tokens(context, args, plan,
                  carver.take<float>(kEngines * carved(args.tokens * padded_k(args.hidden))));
  buffers.inner = reinterpret_cast<char*>(carver.take<float>(size.rows * size.inner));
  buffers.inner_stride = size.inner;
  buffers.scratch_stride = scratch_floats(args, size);
  buffers.scratch = carver.take<float>(context.pool->thread_count() * buffers.scratch_stride);
  clear_inner_ends(context, args, plan, buffers);
  return buffers;
}

}  // namespace

void moe(const Context& context, const MoeArgs& args) {
  if (args.tokens == 0) return;
  const Kernels& kernels = *context.kernels;
  const int threads = context.pool->thread_count();
  const Dimensions size = dimensions_of(args);
  Carver carver(args.workspace);
  const Plan plan = make_plan(args, size, carver);
  const Buffers buffers = make_buffers(context, args, size, plan, carver);

  // Units of the first loop: every group has as many as the widest expert; surplus ones are empty.
  int64_t inner_rows = 0;
  for (int64_t g = 0; g < plan.group_count; ++g) {
    inner_rows = std::max(inner_rows, expert_of(args, plan.group(g)).gate.rows);
  }
  const int64_t gate_step = rows_per_unit(inner_rows * plan.group_count, threads, kGateRows);
  const int64_t per_group = divide_up(inner_rows, gate_step);
  context.pool->run(plan.group_count * per_group, [&](int64_t unit, int worker) {
    const Group group = plan.group(unit / per_group);
    const int64_t row = unit % per_group * gate_step;
    const int64_t end = std::min(row + gate_step, expert_of(args, group).gate.rows);
    if (row >= end) return;
    const int64_t following = std::min(unit + 1, plan.group_count * per_group - 1);
    const MatrixView& gate = expert_of(args, plan.group(following / per_group)).gate;
    const char* const next_rows = row_start(gate, following % per_group * gate_step);
    gate_up_unit(kernels, args, plan, buffers, group, row, end, next_rows, worker);
  });

  const int64_t most = args.tokens <= kDecodeTokens ? kDownRows : kDownRowsPrefill;
  const int64_t down_step = rows_per_unit(args.hidden, threads, most);
  context.pool->run(divide_up(args.hidden, down_step), [&](int64_t unit, int worker) {
    const int64_t row = unit * down_step;
    down_unit(kernels, args, plan, buffers, row, std::min(row + down_step, args.hidden), worker);
  });
}

}  // namespace moray::cpu

namespace moray {

int64_t moe_workspace_floats(const MoeArgs& args, int threads) {
  const cpu::Dimensions size = cpu::dimensions_of(args);
  const int64_t padded = cpu::padded_k(args.hidden);
  return cpu::kCacheLineFloats + cpu::carved(args.tokens * args.top_k) + cpu::carved(size.rows) +
         cpu::carved(size.groups * 3) + cpu::carved(int64_t(args.experts.size()) + 1) +
         cpu::kEngines * cpu::carved(args.tokens * padded) + cpu::carved(size.rows * size.inner) +
         threads * cpu::carved(cpu::scratch_floats(args, size));
}

}  // namespace moray
