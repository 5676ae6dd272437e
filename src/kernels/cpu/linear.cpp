// linear: packs the input once for each engine in use, then cuts all targets' rows into units.
#include "src/kernels/cpu/cpu.h"
#include "src/kernels/cpu/kernels.h"
#include "src/kernels/cpu/partition.h"

namespace moray {

int64_t linear_workspace_floats(int64_t tokens, int64_t k, int threads) {
  const int64_t padded = cpu::padded_k(k);
  return cpu::kCacheLineFloats + cpu::carved(tokens * padded) * 2 +
         threads * cpu::carved(cpu::kLinearTileRows * padded);
}

}  // namespace moray

namespace moray::cpu {

namespace {

// Below this many elements packing is cheaper than starting a loop for it.
constexpr int64_t kSerialPackElements = 32768;

const void* pack(const Context& context, const LinearArgs& args, Engine engine, Carver& carver) {
  const int64_t padded = padded_k(args.k), row_bytes = padded * element_bytes(engine);
  char* const out = carver.take<char>(args.tokens * row_bytes);
  const int64_t block = std::max<int64_t>(1, kSerialPackElements / padded);
  context.pool->run(divide_up(args.tokens, block), [&](int64_t unit, int) {
    const int64_t end = std::min((unit + 1) * block, args.tokens);
    for (int64_t t = unit * block; t < end; ++t) {
      pack_row(*context.kernels, engine, args.x + t * args.k, args.k, out + t * row_bytes);
    }
  });
  return out;
}

PackedInput pack_input(const Context& context, const LinearArgs& args, Carver& carver) {
  PackedInput packed;
  for (const LinearTarget& target : args.targets) {
    const Engine engine = engine_for(*context.kernels, args.precision, target.weight.dtype);
    const int at = static_cast<int>(engine);
    if (packed.rows[at]) continue;
    const bool in_place = engine == Engine::kF32 && args.k % kScaleBlock == 0;
    packed.rows[at] = in_place ? args.x : pack(context, args, engine, carver);
    packed.stride[at] = padded_k(args.k);
  }
  return packed;
}

void run_unit(const Kernels& kernels, const LinearArgs& args, const PackedInput& packed,
              const LinearTarget& target, int64_t row_begin, int64_t row_end, float* scratch) {
  const Engine engine = engine_for(kernels, args.precision, target.weight.dtype);
  LinearJob job = linear_job(target.weight, row_begin, row_end);
  job.x = packed.rows[static_cast<int>(engine)];
  job.x_stride = packed.stride[static_cast<int>(engine)];
  job.tokens = args.tokens;
  job.y = target.y + row_begin;
  job.y_stride = target.y_stride;
  job.add = args.output == LinearArgs::Output::kAddToResidual;
  job.round_sum = job.add && args.precision == Precision::kBfloat16;
  job.scratch = scratch;
  const LinearTarget* const following = &target + 1;
  const bool ends = row_end == target.weight.rows;
  if (ends && following < args.targets.data() + args.targets.size()) {
    job.next = following->weight.data;
  }
  run_linear(kernels, engine, target.weight.dtype, job);
}

}  // namespace

void linear(const Context& context, const LinearArgs& args) {
  if (args.tokens == 0 || args.targets.empty()) return;
  int64_t rows = 0;
  for (const LinearTarget& target : args.targets) {
    CHECK(target.weight.cols == args.k, target.weight.cols, args.k);
    CHECK(weight_kind(target.weight.dtype) >= 0, dtype_name(target.weight.dtype));
    rows += target.weight.rows;
  }
  Carver carver(args.workspace);
  const PackedInput packed = pack_input(context, args, carver);
  const int threads = context.pool->thread_count();
  const int64_t scratch_floats = carved(kLinearTileRows * padded_k(args.k));
  float* const scratch = carver.take<float>(threads * scratch_floats);
  const int64_t step = rows_per_unit(rows, threads, 256);
  int64_t units = 0;
  for (const LinearTarget& target : args.targets) units += divide_up(target.weight.rows, step);
  context.pool->run(units, [&](int64_t unit, int worker) {
    const LinearTarget* target = args.targets.data();
    while (unit >= divide_up(target->weight.rows, step)) {
      unit -= divide_up(target->weight.rows, step);
      ++target;
    }
    const int64_t end = std::min((unit + 1) * step, target->weight.rows);
    run_unit(*context.kernels, args, packed, *target, unit * step, end,
             scratch + worker * scratch_floats);
  });
}

}  // namespace moray::cpu
