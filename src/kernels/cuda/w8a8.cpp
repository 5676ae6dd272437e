#include "src/kernels/cuda/w8a8.h"

#include <algorithm>
#include <cstdint>

#include "src/base/check.h"
#include "src/gpu/program.h"
#include "src/gpu/stream.h"
#include "src/gpu/tensor_map.h"

namespace moray::cuda {
namespace {

constexpr int kBoxRows = 64;

int tiles_of(int count) {
  return (count + kW8a8TileRows - 1) / kW8a8TileRows;
}
bool aligned(const void* data, int64_t more = 0) {
  return (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(more)) % 16 == 0;
}

void map_rows(const QuantisedRows& rows, TensorMap& map) {
  gpu::encode_map({.base = rows.codes,
                   .columns = rows.cols,
                   .rows = rows.rows,
                   .row_bytes = rows.cols,
                   .plane_bytes = int64_t{rows.rows} * rows.cols,
                   .box_rows = kBoxRows},
                  &map);
}
void map_matrix(const Matrix& matrix, TensorMap& map) {
  gpu::encode_map({.base = matrix.data,
                   .columns = matrix.cols,
                   .rows = matrix.rows,
                   .row_bytes = matrix.stride,
                   .plane_bytes = int64_t{matrix.rows} * matrix.stride,
                   .box_rows = kBoxRows},
                  &map);
}
void map_experts(const ExpertRecords& experts, int count, int offset, int rows, int columns,
                 int stride, TensorMap& map) {
  gpu::encode_map({.base = experts.base + offset,
                   .columns = columns,
                   .rows = rows,
                   .planes = count,
                   .row_bytes = stride,
                   .plane_bytes = count > 1 ? experts.record_bytes : int64_t{rows} * stride,
                   .box_rows = kBoxRows},
                  &map);
}

void check_rows(const QuantisedRows& rows) {
  CHECK(rows.cols > 0 && rows.cols % kScaleColumns == 0 && aligned(rows.codes), rows.cols);
  CHECK(rows.scale_stride >= rows.rows, rows.scale_stride, rows.rows);
}

// Pairs of blocks share activation rows where an item's tiles come in pairs; a few blocks more than
// items would only leave at once.
void launch_tiles(gpu::Stream& stream, const W8a8Kernels& kernels, const gpu::Kernel& kernel,
                  bool in_pairs, int64_t tiles_max, const auto& params) {
  const bool wgmma = kernels.arch == 90;
  const W8a8Block& block = wgmma ? kWgmmaBlock : kMmaBlock;
  const int cluster = wgmma && in_pairs ? 2 : 1;
  const auto blocks = static_cast<int>(std::min<int64_t>(kernels.multiprocessors, tiles_max));
  gpu::launch(stream, kernel,
              {.grid = {static_cast<uint32_t>((blocks + cluster - 1) / cluster * cluster)},
               .block = {static_cast<uint32_t>(block.threads)},
               .shared_bytes = block.shared_bytes,
               .cluster = cluster,
               .programmatic = true},
              params);
}

// Of a plan at most: every expert's last tile may be short.
int64_t tiles_max(const ExpertTile* tiles, int rows, int experts) {
  return tiles == nullptr ? tiles_of(rows) : tiles_of(rows) + experts;
}

}  // namespace

W8a8Kernels find_w8a8_kernels(const gpu::KernelSet& kernels, int arch, int multiprocessors) {
  return {.arch = arch,
          .multiprocessors = multiprocessors,
          .dense = kernels.find("w8a8_dense"),
          .gate_up = kernels.find("w8a8_gate_up"),
          .down = kernels.find("w8a8_down")};
}

bool w8a8_supports(const Matrix& weight) {
  return weight.format == Format::kFp8 && weight.cols > 0 && weight.cols % kScaleColumns == 0 &&
         weight.rows % 8 == 0 && weight.stride % 16 == 0 && aligned(weight.data);
}

bool w8a8_supports(const ExpertRecords& experts, int hidden) {
  return experts.format == Format::kFp8 && experts.width > 0 &&
         experts.width % kScaleColumns == 0 && hidden % kScaleColumns == 0 &&
         experts.gate_stride % 16 == 0 && experts.down_stride % 16 == 0 &&
         experts.record_bytes % 16 == 0 && aligned(experts.base) &&
         aligned(experts.base, experts.up) && aligned(experts.base, experts.down);
}

void w8a8_dense(gpu::Stream& stream, const W8a8Kernels& kernels, const W8a8Dense& asked) {
  W8a8Dense params = asked;
  if (params.tokens == 0) return;
  check_rows(params.x);
  CHECK(params.tokens <= params.x.rows, params.tokens, params.x.rows);
  CHECK(params.target_count >= 1 && params.target_count <= kW8a8TargetsMax, params.target_count);
  int64_t columns = 0;
  for (int i = 0; i < params.target_count; ++i) {
    const W8a8Target& target = params.targets[i];
    CHECK(w8a8_supports(target.weight) && target.weight.cols == params.x.cols, i,
          target.weight.rows, target.weight.cols, params.x.cols);
    CHECK(target.out_stride % 8 == 0 && aligned(target.out), i, target.out_stride);
    columns += tiles_of(target.weight.rows);
    if (kernels.arch == 90) map_matrix(target.weight, params.weight_maps[i]);
  }
  if (kernels.arch == 90) map_rows(params.x, params.x_map);
  launch_tiles(stream, kernels, kernels.dense, columns > 1, columns * tiles_of(params.tokens),
               params);
}

void w8a8_gate_up(gpu::Stream& stream, const W8a8Kernels& kernels, const W8a8GateUp& asked) {
  W8a8GateUp params = asked;
  const ExpertRecords& experts = params.experts;
  if (params.x.rows == 0 || (params.tiles == nullptr && params.tokens == 0)) return;
  check_rows(params.x);
  check_rows(params.inner);
  CHECK(w8a8_supports(experts, params.x.cols), experts.width, params.x.cols);
  CHECK(params.inner.cols == experts.width, params.inner.cols, experts.width);
  CHECK(params.tiles != nullptr || params.tokens <= params.x.rows, params.tokens, params.x.rows);
  if (kernels.arch == 90) {
    map_rows(params.x, params.x_map);
    map_experts(experts, params.expert_count, 0, experts.width, params.x.cols, experts.gate_stride,
                params.gate_map);
    map_experts(experts, params.expert_count, experts.up, experts.width, params.x.cols,
                experts.gate_stride, params.up_map);
  }
  const int groups = experts.width / kScaleColumns;
  launch_tiles(stream, kernels, kernels.gate_up, groups % 2 == 0,
               groups * tiles_max(params.tiles, params.x.rows, params.expert_count), params);
}

void w8a8_down(gpu::Stream& stream, const W8a8Kernels& kernels, const W8a8Down& asked) {
  W8a8Down params = asked;
  const ExpertRecords& experts = params.experts;
  if (params.inner.rows == 0 || (params.tiles == nullptr && params.tokens == 0)) return;
  check_rows(params.inner);
  CHECK(w8a8_supports(experts, params.columns), experts.width, params.columns);
  CHECK(params.inner.cols == experts.width, params.inner.cols, experts.width);
  CHECK(params.out_stride % 8 == 0 && aligned(params.out), params.out_stride);
  CHECK(params.tiles != nullptr || params.tokens <= params.inner.rows, params.tokens);
  if (kernels.arch == 90) {
    map_rows(params.inner, params.inner_map);
    map_experts(experts, params.expert_count, experts.down, params.columns, experts.width,
                experts.down_stride, params.down_map);
  }
  const int groups = tiles_of(params.columns);
  launch_tiles(stream, kernels, kernels.down, groups % 2 == 0,
               groups * tiles_max(params.tiles, params.inner.rows, params.expert_count), params);
}

}  // namespace moray::cuda
