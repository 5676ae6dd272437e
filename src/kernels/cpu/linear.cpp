// linear: packs the input once for each engine in use, then cuts all targets' rows into units.
#include <array>

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

// The input as each engine reads it; a pointer is null if no target needs it.
struct PackedInput {
  const float* f32 = nullptr;
  int64_t f32_stride = 0;
  const uint16_t* bf16 = nullptr;
  int64_t bf16_stride = 0;
};

// Below this many elements packing is cheaper than starting a loop for it.
constexpr int64_t kSerialPackElements = 32768;

template <typename Element>
Element* pack(const Context& context, const LinearArgs& args, Carver& carver,
              void (*pack_row)(const float*, int64_t, Element*, int64_t)) {
  const int64_t padded = padded_k(args.k);
  Element* const out = carver.take<Element>(args.tokens * padded);
  const int64_t block = std::max<int64_t>(1, kSerialPackElements / padded);
  context.pool->run(divide_up(args.tokens, block), [&](int64_t unit, int) {
    const int64_t end = std::min((unit + 1) * block, args.tokens);
    for (int64_t t = unit * block; t < end; ++t) {
      pack_row(args.x + t * args.k, args.k, out + t * padded, padded);
    }
  });
  return out;
}

PackedInput pack_input(const Context& context, const LinearArgs& args, Carver& carver) {
  bool needs_f32 = false, needs_bf16 = false;
  for (const LinearTarget& target : args.targets) {
    const bool bf16 =
        engine_for(*context.kernels, args.precision, target.weight.dtype) == Engine::kBf16;
    (bf16 ? needs_bf16 : needs_f32) = true;
  }
  PackedInput packed{.f32 = args.x, .f32_stride = args.k};
  if (needs_f32 && args.k % kScaleBlock != 0) {
    packed.f32 = pack(context, args, carver, context.kernels->pack_f32);
    packed.f32_stride = padded_k(args.k);
  }
  if (needs_bf16) {
    packed.bf16 = pack(context, args, carver, context.kernels->pack_bf16);
    packed.bf16_stride = padded_k(args.k);
  }
  return packed;
}

void run_unit(const Kernels& kernels, const LinearArgs& args, const PackedInput& packed,
              const LinearTarget& target, int64_t row_begin, int64_t row_end, float* scratch) {
  const Engine engine = engine_for(kernels, args.precision, target.weight.dtype);
  LinearJob job = linear_job(target.weight, row_begin, row_end);
  job.x = engine == Engine::kBf16 ? static_cast<const void*>(packed.bf16) : packed.f32;
  job.x_stride = engine == Engine::kBf16 ? packed.bf16_stride : packed.f32_stride;
  job.tokens = args.tokens;
  job.y = target.y + row_begin;
  job.y_stride = target.y_stride;
  job.add = args.output == LinearArgs::Output::kAddToResidual;
  job.round_sum = job.add && args.precision == Precision::kBfloat16;
  job.scratch = scratch;
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
