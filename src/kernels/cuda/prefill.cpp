// Launch shapes of the prefill stages.
#include "src/kernels/cuda/prefill.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/gpu/program.h"
#include "src/gpu/stream.h"

namespace moray::cuda {

namespace {

constexpr int kRowsABlock = 8;  // of the row-wise kernels, a warp each
constexpr int kThreads = 256;
constexpr int kRouteThreads = 1024;  // of route_rows and plan_tiles
constexpr int kTileWeights = 256;    // product_tile.cuh

int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

gpu::Dim grid(int x, int y = 1) {
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(y), 1};
}

// The stages of product_tile.cuh: four of 64 columns of FP8 weights and BF16 tokens, which is more
// than two with BF16 weights; one kernel holds both formats.
int tile_shared_bytes(int tile_rows) {
  return 4 * (kTileWeights * 64 + tile_rows * 64 * 2);
}

ByTileRows find_by_rows(const gpu::KernelSet& kernels, const std::string& name) {
  return {kernels.find(name + "_32"), kernels.find(name + "_64")};
}

void launch_rows(gpu::Stream& stream, const gpu::Kernel& kernel, int rows, const auto& params) {
  if (rows == 0) return;
  gpu::launch(stream, kernel, {.grid = grid(ceil_div(rows, kRowsABlock)), .block = {kThreads}},
              params);
}

void launch_tiles(gpu::Stream& stream, const ByTileRows& kernels, int tile_rows, gpu::Dim blocks,
                  const auto& params) {
  CHECK(tile_rows == 32 || tile_rows == 64, tile_rows);
  gpu::launch(stream, kernels.of(tile_rows),
              {.grid = blocks, .block = {kThreads}, .shared_bytes = tile_shared_bytes(tile_rows)},
              params);
}

// Tiles that a plan for `tokens` may hold: one begun for each expert with rows, and the full ones.
int tiles_max(const PrefillShape& shape, int tokens, int tile_rows) {
  const int pairs = tokens * shape.top_k;
  return std::min(shape.experts, pairs) + pairs / tile_rows;
}

// The tile height for a projection: the tall one, which reads the weights less often, where it
// fills the GPU; short ones are twice as many and half as long.
int projection_tile_rows(const PrefillShape& shape, int tokens, int weight_tiles) {
  return ceil_div(tokens, 64) * weight_tiles >= shape.multiprocessors ? 64 : 32;
}

// Sizes of a plan's arrays, in bytes, in the order of ExpertPlan.
struct PlanSizes {
  int64_t sizes[8];
};
PlanSizes plan_sizes(const PrefillShape& shape, int tokens, int tile_rows) {
  const int64_t pairs = int64_t{tokens} * shape.top_k;
  const int64_t chunks = ceil_div(tokens, kPlanChunkTokens);
  return {{pairs * 4, pairs * 4, tokens * int64_t{4}, chunks * shape.experts * 4,
           tiles_max(shape, tokens, tile_rows) * int64_t{sizeof(ExpertTile)}, 4, pairs * 4,
           pairs * 4}};
}
int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace

PrefillKernels find_prefill_kernels(const gpu::KernelSet& kernels, const PrefillShape& shape) {
  return {.shape = shape,
          .embed_rows = kernels.find("embed_rows"),
          .norm_rows = kernels.find("norm_rows"),
          .quantise_rows = kernels.find("quantise_rows"),
          .gather_rows = kernels.find("gather_rows"),
          .route_rows = kernels.find("route_rows"),
          .plan_tiles = kernels.find("plan_tiles"),
          .place_rows = kernels.find("place_rows"),
          .combine_rows = kernels.find("combine_rows"),
          .project_rows = find_by_rows(kernels, "project_rows"),
          .gate_up_rows = find_by_rows(kernels, "gate_up_rows"),
          .down_rows = find_by_rows(kernels, "down_rows")};
}

// A short tile multiplies fewer rows that are not there, a tall one reads the weights less often.
int expert_tile_rows(const PrefillShape& shape, int tokens) {
  const int64_t rows_an_expert = int64_t{tokens} * shape.top_k / shape.experts;
  return rows_an_expert <= 20 ? 32 : 64;
}

int64_t expert_plan_bytes(const PrefillShape& shape, int tokens, int tile_rows) {
  int64_t total = 0;
  for (int64_t size : plan_sizes(shape, tokens, tile_rows).sizes) total += aligned(size);
  return total;
}

ExpertPlan expert_plan_at(const PrefillShape& shape, int tokens, int tile_rows, char* base) {
  char* at[8];
  const PlanSizes plan = plan_sizes(shape, tokens, tile_rows);
  for (int i = 0; i < 8; ++i) {
    at[i] = base;
    base += aligned(plan.sizes[i]);
  }
  return {.expert_ids = reinterpret_cast<int*>(at[0]),
          .expert_weights = reinterpret_cast<float*>(at[1]),
          .shared_weight = reinterpret_cast<float*>(at[2]),
          .counts = reinterpret_cast<int*>(at[3]),
          .tiles = reinterpret_cast<ExpertTile*>(at[4]),
          .tile_count = reinterpret_cast<int*>(at[5]),
          .sorted = reinterpret_cast<int*>(at[6]),
          .row_of = reinterpret_cast<int*>(at[7]),
          .tile_rows = tile_rows};
}

void embed_rows(gpu::Stream& stream, const PrefillKernels& kernels, const EmbedRowsParams& params) {
  launch_rows(stream, kernels.embed_rows, params.count, params);
}

void norm_rows(gpu::Stream& stream, const PrefillKernels& kernels, const NormRowsParams& params) {
  CHECK(params.quantised.codes == nullptr || params.quantised.cols == kernels.shape.hidden,
        params.quantised.cols, kernels.shape.hidden);
  CHECK(params.quantised.codes == nullptr || params.quantised.cols % kScaleColumns == 0,
        params.quantised.cols);
  launch_rows(stream, kernels.norm_rows, params.count, params);
}

void quantise_rows(gpu::Stream& stream, const PrefillKernels& kernels,
                   const QuantiseRowsParams& params) {
  CHECK(params.quantised.cols % kScaleColumns == 0, params.quantised.cols);
  launch_rows(stream, kernels.quantise_rows, params.count, params);
}

void gather_rows(gpu::Stream& stream, const PrefillKernels& kernels,
                 const GatherRowsParams& params) {
  launch_rows(stream, kernels.gather_rows, params.count, params);
}

void combine_rows(gpu::Stream& stream, const PrefillKernels& kernels,
                  const CombineRowsParams& params) {
  launch_rows(stream, kernels.combine_rows, params.tokens, params);
}

void project_rows(gpu::Stream& stream, const PrefillKernels& kernels, ProjectRowsParams params) {
  CHECK(params.target_count >= 1 && params.target_count <= kRowsTargetsMax, params.target_count);
  CHECK(params.x_stride % 8 == 0, params.x_stride);
  if (params.tokens == 0) return;
  int weight_tiles = 0;
  for (int i = 0; i < params.target_count; ++i) {
    RowsTarget& target = params.targets[i];
    CHECK(target.weight.format != Format::kF32, "projections take FP8 or BF16 weights");
    CHECK(target.output == RowsOutput::kF32 ||
              (target.weight.rows % 2 == 0 && target.out_stride % 2 == 0),
          target.weight.rows, target.out_stride);
    target.first_tile = weight_tiles;
    weight_tiles += ceil_div(target.weight.rows, kTileWeights);
  }
  const int tile_rows = projection_tile_rows(kernels.shape, params.tokens, weight_tiles);
  launch_tiles(stream, kernels.project_rows, tile_rows,
               grid(weight_tiles * ceil_div(params.tokens, tile_rows)), params);
}

void route_rows(gpu::Stream& stream, const PrefillKernels& kernels, const RouteRowsParams& params) {
  if (params.tokens == 0) return;
  const int chunks = ceil_div(params.tokens, kPlanChunkTokens);
  gpu::launch(stream, kernels.route_rows, {.grid = grid(chunks), .block = {kRouteThreads}}, params);
  gpu::launch(stream, kernels.plan_tiles, {.grid = grid(1), .block = {kRouteThreads}}, params);
  gpu::launch(stream, kernels.place_rows, {.grid = grid(chunks), .block = {kThreads}}, params);
}

void gate_up_rows(gpu::Stream& stream, const PrefillKernels& kernels, GateUpRowsParams params) {
  if (params.tokens == 0) return;
  const int tile_rows = params.plan.tile_rows;
  params.shared_tiles = params.shared.width > 0 ? ceil_div(params.tokens, tile_rows) : 0;
  const int tiles = params.shared_tiles + tiles_max(kernels.shape, params.tokens, tile_rows);
  const int width = std::max(params.experts.width, params.shared.width);
  launch_tiles(stream, kernels.gate_up_rows, tile_rows,
               grid(ceil_div(width, kTileWeights / 2), tiles), params);
}

void down_rows(gpu::Stream& stream, const PrefillKernels& kernels, DownRowsParams params) {
  if (params.tokens == 0) return;
  const int tile_rows = params.plan.tile_rows;
  params.shared_tiles = params.shared.width > 0 ? ceil_div(params.tokens, tile_rows) : 0;
  const int tiles = params.shared_tiles + tiles_max(kernels.shape, params.tokens, tile_rows);
  launch_tiles(stream, kernels.down_rows, tile_rows,
               grid(ceil_div(kernels.shape.hidden, kTileWeights), tiles), params);
}

}  // namespace moray::cuda
