// Decode step: embedding, norm + projections, projection + residual.
//
// Block: one warp for each slice of the columns (groups of them where the matrix is narrow), each
// streaming its slice of the block's 16-row tiles; see weight_ring.cuh. Rows of one tile belong to
// one block, so outputs need no second pass.
#include "constants.cuh"
#include "device/grid.cuh"
#include "device/normed.cuh"
#include "device/partial_sums.cuh"
#include "device/residual_rows.cuh"

using namespace moray::cuda;

namespace {

constexpr int kSlices = kHiddenSlices;
constexpr int kGroups = groups_of(kHidden, kHiddenSpan);
constexpr int kThreads = warps_of(kHidden, kHiddenSpan) * 32;
constexpr int kScaleCols = (kHidden + 127) / 128;
static_assert(kHidden % 8 == 0 && kHidden <= kDecodeColumnsMax);

extern __shared__ char4 shared_memory[];

// Tiles local, local + blocks, ... of a target, in units of kGroups.
template <Format kFormat, int kTokens>
__device__ __forceinline__ void project(const NormProjectParams& p, const ProjectTarget& target,
                                        NormSums& sums) {
  constexpr int kDepth = ring_depth(kArch, kTokens);
  const int tokens = kTokens == 1 ? 1 : p.tokens;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int slice = warp % kSlices, group = warp / kSlices;
  char* const rings = reinterpret_cast<char*>(shared_memory);
  const PartialSums<kTokens> partials{rings + kThreads / 32 * kDepth * kRingSlotBytes,
                                      scratch_bytes(kArch, tokens), tokens};
  const Matrix& w = target.weight;
  const int local = blockIdx.x - target.first_block;
  const int units = ((w.rows + kTileRows - 1) / kTileRows + kGroups - 1) / kGroups;
  const int count = (units - local + target.blocks - 1) / target.blocks;
  const auto tile_at = [&](int j, int of_group) {
    return (local + j * target.blocks) * kGroups + of_group;
  };
  const auto locate = [&](int j) {
    return tile_of<kFormat>(static_cast<const char*>(w.data), w.scales, w.rows, stride_of(kHidden),
                            kScaleCols, tile_at(j, group));
  };
  WeightRing<kFormat, kHiddenSpan, kDepth, stride_of(kHidden)> ring(rings, warp, 0, kHidden, slice,
                                                                    lane);
  ring.fill(count, locate);
  NormWeights norm;
  norm.load(p.norm_weight, slice, lane);
  let_next_start();
  wait_for_previous();
  Activations<widths_of(kTokens), kHiddenSpan> x;
  norm_slice<kFormat, kTokens>(x, p.residual, tokens, norm, sums,
                               partials.scratch + warp * partials.warp_bytes, nullptr, slice, lane);
  ring.run(
      count, locate, x, [](int) {},
      [&](int j, const float(&sum)[widths_of(kTokens)][4]) {
        partials.put(warp, j, sum, lane);
        int first;
        if (!partials.batch_done(j, count, first)) return;
        const int outputs = (j - first + 1) * kGroups * tokens * kTileRows;
        for (int i = threadIdx.x; i < outputs; i += kThreads) {
          const int r = i % kTileRows, token = i / kTileRows % tokens;
          const int tile = i / kTileRows / tokens, of_group = tile % kGroups;
          const int at = first + tile / kGroups;
          const int row = tile_at(at, of_group) * kTileRows + r;
          if (row < w.rows) {
            target.y[token * target.y_stride + row] =
                partials.total(of_group * kSlices, kSlices, at, token, r);
          }
        }
      });
}

template <int kTokens>
__device__ __forceinline__ void norm_project(const NormProjectParams& p) {
  __shared__ NormSums sums;
  int i = 0;
  while (i + 1 < p.target_count && static_cast<int>(blockIdx.x) >= p.targets[i + 1].first_block) {
    ++i;
  }
  if (kProjectionFp8 && p.targets[i].weight.format == Format::kFp8) {
    project<Format::kFp8, kTokens>(p, p.targets[i], sums);
  } else {
    project<Format::kBf16, kTokens>(p, p.targets[i], sums);
  }
}

// Widest block of project_add: a warp for each slice of 4096 columns.
constexpr int kAddThreads = warps_of(kDecodeColumnsMax, kAddSpan) * 32;
constexpr int kAddGroupsMax = groups_of(1, kAddSpan);

// All output projections of a model are of one format.
template <int kTokens>
__device__ __forceinline__ void project_add(const ProjectAddParams& p) {
  constexpr Format kFormat = kProjectionFp8 ? Format::kFp8 : Format::kBf16;
  __shared__ ResidualRows<kTokens> residual[kAddGroupsMax];
  if (p.weight.format != kFormat) __trap();
  constexpr int kDepth = add_ring_depth(kArch, kFormat == Format::kFp8);
  const int tokens = kTokens == 1 ? 1 : p.tokens;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Matrix& w = p.weight;
  const int slices = slices_of(w.cols, kAddSpan), groups = groups_of(w.cols, kAddSpan);
  const int slice = warp % slices, group = warp / slices;
  char* const rings = reinterpret_cast<char*>(shared_memory);
  const PartialSums<kTokens> partials{rings + slices * groups * kDepth * kRingSlotBytes,
                                      add_scratch_bytes(tokens), tokens};
  const int tile = blockIdx.x * groups + group;
  const auto locate = [&](int) {
    return tile_of<kFormat>(static_cast<const char*>(w.data), w.scales, w.rows, w.stride,
                            (w.cols + 127) / 128, tile);
  };
  WeightRing<kFormat, kAddSpan, kDepth, 0> ring(rings, warp, w.stride, w.cols, slice, lane);
  ring.fill(1, locate);
  let_next_start();
  wait_for_previous();
  Activations<widths_of(kTokens), kAddSpan> x;
  const int column = slice * (kAddSpan * kSliceUnit);
  load_activations<kFormat>(
      x,
      [&](int token) -> const Bfloat16* {
        return token < tokens ? p.x + token * w.cols + column : nullptr;
      },
      w.cols - column, lane);
  residual[group].start(p.residual, w.rows, tile, tokens,
                        static_cast<int>(threadIdx.x) - group * slices * 32);
  commit_copies();
  scale_activations<kFormat>(x, lane);
  ring.run(
      1, locate, x, [](int) {},
      [&](int, const float(&sum)[widths_of(kTokens)][4]) { partials.put(warp, 0, sum, lane); });
  wait_copies<0>();
  __syncthreads();
  for (int i = threadIdx.x; i < groups * tokens * kTileRows; i += blockDim.x) {
    const int r = i % kTileRows, token = i / kTileRows % tokens, of_group = i / kTileRows / tokens;
    const int row = (blockIdx.x * groups + of_group) * kTileRows + r;
    if (row < w.rows) {
      p.residual[token * w.rows + row] =
          float_bf16(bf16_float(residual[of_group].old[token][r]) +
                     partials.total(of_group * slices, slices, 0, token, r));
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128)
    embed_step(const __grid_constant__ EmbedParams p) {
  let_next_start();
  wait_for_previous();
  const int token = p.step->tokens[blockIdx.x];
  const int row = token >= 0 && token < p.table.rows ? token : 0;
  const Pack16* const from = reinterpret_cast<const Pack16*>(
      static_cast<const Bfloat16*>(p.table.data) + static_cast<int64>(row) * p.table.stride);
  Pack16* const to = reinterpret_cast<Pack16*>(p.residual + blockIdx.x * kHidden);
  for (int i = threadIdx.x; i < kHidden / 8; i += 128) to[i] = from[i];
}

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    norm_project_1(const __grid_constant__ NormProjectParams p) {
  norm_project<1>(p);
}
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    norm_project_8(const __grid_constant__ NormProjectParams p) {
  norm_project<8>(p);
}
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    norm_project_16(const __grid_constant__ NormProjectParams p) {
  norm_project<16>(p);
}
// 64 registers a thread, so that two blocks of 512 threads, this and the next kernel's, fit.
extern "C" __global__ void __launch_bounds__(kAddThreads, 2)
    project_add_1(const __grid_constant__ ProjectAddParams p) {
  project_add<1>(p);
}
extern "C" __global__ void __launch_bounds__(kAddThreads)
    project_add_8(const __grid_constant__ ProjectAddParams p) {
  project_add<8>(p);
}
extern "C" __global__ void __launch_bounds__(kAddThreads)
    project_add_16(const __grid_constant__ ProjectAddParams p) {
  project_add<16>(p);
}
