// embed and rms_norm: rows are independent and cheap, so a few of them never leave the caller.
#include "src/kernels/cpu/cpu.h"
#include "src/kernels/cpu/kernels.h"
#include "src/kernels/cpu/partition.h"

namespace moray::cpu {

namespace {

// About 10 us of work: less is not worth waking another thread.
constexpr int64_t kUnitElements = 16384;

int64_t rows_of_unit(int64_t dim) {
  return std::max<int64_t>(1, kUnitElements / dim);
}

}  // namespace

void embed(const Context& context, const EmbedArgs& args) {
  const MatrixView& table = args.table;
  CHECK(table.scales == nullptr && weight_kind(table.dtype) != kWeightFp8, "FP8 embedding table");
  const int64_t count = static_cast<int64_t>(args.tokens.size());
  for (int32_t token : args.tokens) CHECK(token >= 0 && token < table.rows, token, table.rows);
  const int64_t row_bytes = table.cols * dtype_bytes(table.dtype);
  const int64_t step = rows_of_unit(table.cols);
  context.pool->run(divide_up(count, step), [&](int64_t unit, int) {
    for (int64_t t = unit * step; t < std::min((unit + 1) * step, count); ++t) {
      const auto* row = static_cast<const char*>(table.data) + args.tokens[size_t(t)] * row_bytes;
      context.kernels->widen(row, weight_kind(table.dtype), table.cols, args.out + t * table.cols);
    }
  });
}

void rms_norm(const Context& context, const RmsNormArgs& args) {
  const int64_t step = rows_of_unit(args.dim);
  context.pool->run(divide_up(args.rows, step), [&](int64_t unit, int) {
    const int64_t begin = unit * step;
    context.kernels->rms_norm({.x = args.x + begin * args.dim,
                               .weight = args.weight,
                               .rows = std::min(step, args.rows - begin),
                               .dim = args.dim,
                               .eps = args.eps,
                               .zero_centred = args.kind == NormKind::kZeroCentred,
                               .round = args.precision == Precision::kBfloat16,
                               .out = args.out + begin * args.dim});
  });
}

}  // namespace moray::cpu
