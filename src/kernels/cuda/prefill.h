// A prefill block's stages around the mixers: norms, projections, routing, experts.
//
// Order of a layer: norm_rows, project_rows (in), mixer, project_rows (out, kAddBf16), norm_rows,
// project_rows (router and shared gate, kF32), route_rows, gate_up_rows, down_rows, combine_rows.
// No host round trip: grids are fixed by the token count, and blocks beyond what the plan holds
// leave. The products here take BF16 activations on every architecture: the path of checkpoints
// without dynamic FP8 activations, of shapes off the W8A8 grid, and the proven path behind w8a8.h,
// whose kernels take quantise_rows, norm_rows and gather_rows as inputs and the same plan.
//
// Numbers: products of BF16 with BF16, or with E4M3 widened exactly, FP32 accumulators, sixteen
// columns at a time in order. With FP8 weights the sums are in units of the block's scale
// (device/product_tile.cuh), one rounding a block of 128 columns; scales below 2^-60 count as
// 2^-60. An output element has one order of summation, whatever the block's other tokens and the
// tile height; experts' outputs are rounded to BF16 before the weighted sum (ops.h keeps them in
// FP32: at most 2^-9 relative each).
#pragma once

#include <cstdint>

#include "src/gpu/launch.h"
#include "src/kernels/cuda/prefill_params.h"

namespace moray::gpu {
class KernelSet;
class Stream;
}  // namespace moray::gpu

namespace moray::cuda {

// The model's sizes that shape a launch; equal to the constants the kernels were compiled with.
struct PrefillShape {
  int hidden = 0;
  int experts = 0, top_k = 0, expert_dim = 0, shared_dim = 0;
  int multiprocessors = 0;
};

// One kernel for each height of a tile: 32 or 64 tokens.
struct ByTileRows {
  gpu::Kernel rows_32, rows_64;
  const gpu::Kernel& of(int tile_rows) const { return tile_rows <= 32 ? rows_32 : rows_64; }
};
struct PrefillKernels {
  PrefillShape shape;
  gpu::Kernel embed_rows, norm_rows, quantise_rows, gather_rows;
  gpu::Kernel route_rows, plan_tiles, place_rows, combine_rows;
  ByTileRows project_rows, gate_up_rows, down_rows;
};
// The programs that hold them: "prefill_rows.cu", "prefill_route.cu", "prefill_project.cu",
// "prefill_experts.cu".
PrefillKernels find_prefill_kernels(const gpu::KernelSet& kernels, const PrefillShape& shape);

// Height of the tiles, 32 or 64, that suits gate_up_rows and down_rows for a block of `tokens`;
// W8A8 kernels always take kW8a8TileRows.
int expert_tile_rows(const PrefillShape& shape, int tokens);

// Bytes of a plan for blocks of up to `tokens` with tiles of at least `tile_rows` rows, and the
// plan carved from them, every array 256-byte aligned. One serves all layers of a stream.
int64_t expert_plan_bytes(const PrefillShape& shape, int tokens, int tile_rows);
ExpertPlan expert_plan_at(const PrefillShape& shape, int tokens, int tile_rows, char* base);

// Each reads and writes its arrays once; bound by memory.
void embed_rows(gpu::Stream& stream, const PrefillKernels& kernels, const EmbedRowsParams& params);
void norm_rows(gpu::Stream& stream, const PrefillKernels& kernels, const NormRowsParams& params);
void quantise_rows(gpu::Stream& stream, const PrefillKernels& kernels,
                   const QuantiseRowsParams& params);
void gather_rows(gpu::Stream& stream, const PrefillKernels& kernels,
                 const GatherRowsParams& params);
void combine_rows(gpu::Stream& stream, const PrefillKernels& kernels,
                  const CombineRowsParams& params);

// 2 T N K FLOP over all targets; first_tile of the targets is filled here.
void project_rows(gpu::Stream& stream, const PrefillKernels& kernels, ProjectRowsParams params);

// Three launches: top-k and counts, offsets and tiles, places.
void route_rows(gpu::Stream& stream, const PrefillKernels& kernels, const RouteRowsParams& params);

// 4 T (top_k I + Is) H and 2 T (top_k I + Is) H FLOP; shared_tiles is filled here.
void gate_up_rows(gpu::Stream& stream, const PrefillKernels& kernels, GateUpRowsParams params);
void down_rows(gpu::Stream& stream, const PrefillKernels& kernels, DownRowsParams params);

}  // namespace moray::cuda
