// Decode step: embedding, norm + projections, projection + residual.
//
// Block: one warp for each 256-column slice (groups of them where the matrix is narrow), each
// streaming its slice of the block's 16-row tiles; see weight_ring.cuh. Rows of one tile belong to
// one block, so outputs need no second pass.
#include "constants.cuh"
#include "device/grid.cuh"
#include "device/normed.cuh"
#include "device/partial_sums.cuh"

using namespace moray::cuda;

namespace {

constexpr int kSlices = kHiddenSlices;
constexpr int kGroups = groups_of(kHidden);
constexpr int kThreads = warps_of(kHidden) * 32;
static_assert(kHidden % 8 == 0 && kHidden <= kDecodeColumnsMax);

extern __shared__ char4 shared_memory[];

// Tiles local, local + blocks, ... of a target, in units of kGroups.
template <Format kFormat, int kTokens>
__device__ __forceinline__ void project(const NormProjectParams& p, const ProjectTarget& target,
                                        NormSums& sums) {
  constexpr int kDepth = ring_depth(kArch, kTokens);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int slice = warp % kSlices, group = warp / kSlices;
  char* const rings = reinterpret_cast<char*>(shared_memory);
  const PartialSums<kTokens> partials{rings + kThreads / 32 * kDepth * kSlotBytes,
                                      scratch_bytes(p.tokens), p.tokens};
  const Matrix& w = target.weight;
  const int local = blockIdx.x - target.first_block;
  const int units = ((w.rows + kTileRows - 1) / kTileRows + kGroups - 1) / kGroups;
  const int count = (units - local + target.blocks - 1) / target.blocks;
  const int scale_cols = (w.cols + 127) / 128;
  const auto tile_at = [&](int j, int of_group) {
    return (local + j * target.blocks) * kGroups + of_group;
  };
  const auto locate = [&](int j) {
    return tile_of<kFormat>(static_cast<const char*>(w.data), w.scales, w.rows, w.stride,
                            scale_cols, tile_at(j, group));
  };
  WeightRing<kFormat, kDepth> ring{
      rings + warp * kDepth * kSlotBytes, w.stride, w.cols, slice, lane, 0};
  ring.fill(count, locate);
  NormWeights norm;
  norm.load(p.norm_weight, slice, lane);
  let_next_start();
  wait_for_previous();
  Activations<widths_of(kTokens)> x;
  norm_slice<kFormat, kTokens>(x, p.residual, p.tokens, norm, sums,
                               partials.scratch + warp * partials.warp_bytes, nullptr, slice, lane);
  ring.run(
      count, locate, x, [](int) {},
      [&](int j, const float(&sum)[widths_of(kTokens)][4]) {
        partials.put(warp, j, sum, lane);
        int first;
        if (!partials.batch_done(j, count, first)) return;
        const int outputs = (j - first + 1) * kGroups * p.tokens * kTileRows;
        for (int i = threadIdx.x; i < outputs; i += kThreads) {
          const int r = i % kTileRows, token = i / kTileRows % p.tokens;
          const int tile = i / kTileRows / p.tokens, of_group = tile % kGroups;
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
  if (p.targets[i].weight.format == Format::kFp8) {
    project<Format::kFp8, kTokens>(p, p.targets[i], sums);
  } else {
    project<Format::kBf16, kTokens>(p, p.targets[i], sums);
  }
}

// Widest block of project_add: a warp for each slice of 4096 columns.
constexpr int kAddThreads = warps_of(kDecodeColumnsMax) * 32;

template <Format kFormat, int kTokens>
__device__ __forceinline__ void project_add(const ProjectAddParams& p) {
  // The block's one tile a group is all there is to stream, so more slots than its parts are idle.
  constexpr int kAddDepth = add_ring_depth(kArch, kFormat == Format::kFp8);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Matrix& w = p.weight;
  const int slices = slices_of(w.cols), groups = groups_of(w.cols);
  const int slice = warp % slices, group = warp / slices;
  char* const rings = reinterpret_cast<char*>(shared_memory);
  const PartialSums<kTokens> partials{rings + slices * groups * kAddDepth * kSlotBytes,
                                      add_scratch_bytes(p.tokens), p.tokens};
  const int tile = blockIdx.x * groups + group;
  const auto locate = [&](int) {
    return tile_of<kFormat>(static_cast<const char*>(w.data), w.scales, w.rows, w.stride,
                            (w.cols + 127) / 128, tile);
  };
  WeightRing<kFormat, kAddDepth> ring{
      rings + warp * kAddDepth * kSlotBytes, w.stride, w.cols, slice, lane, 0};
  ring.fill(1, locate);
  let_next_start();
  wait_for_previous();
  Activations<widths_of(kTokens)> x;
  load_activations<kFormat>(
      x,
      [&](int token) -> const Bfloat16* {
        return token < p.tokens ? p.x + token * w.cols + slice * kSliceColumns : nullptr;
      },
      w.cols - slice * kSliceColumns, lane);
  scale_activations<kFormat>(x, lane);
  const int outputs = groups * p.tokens * kTileRows;
  const auto output_at = [&](int i) {  // null: no such row
    const int row = (blockIdx.x * groups + i / kTileRows / p.tokens) * kTileRows + i % kTileRows;
    return row < w.rows ? p.residual + i / kTileRows % p.tokens * w.rows + row : nullptr;
  };
  const auto residual_at = [&](int i) {
    const Bfloat16* const h = i < outputs ? output_at(i) : nullptr;
    return h != nullptr ? bf16_float(load_fresh_half(h)) : 0.0f;
  };
  const float mine = residual_at(threadIdx.x);  // on its way while the products run
  ring.run(
      1, locate, x, [](int) {},
      [&](int, const float(&sum)[widths_of(kTokens)][4]) { partials.put(warp, 0, sum, lane); });
  __syncthreads();
  for (int i = threadIdx.x; i < outputs; i += blockDim.x) {
    const float h = i < static_cast<int>(blockDim.x) ? mine : residual_at(i);
    const float sum = partials.total(i / kTileRows / p.tokens * slices, slices, 0,
                                     i / kTileRows % p.tokens, i % kTileRows);
    if (Bfloat16* const to = output_at(i)) *to = float_bf16(h + sum);
  }
}

template <int kTokens>
__device__ __forceinline__ void project_add_any(const ProjectAddParams& p) {
  if (p.weight.format == Format::kFp8) {
    project_add<Format::kFp8, kTokens>(p);
  } else {
    project_add<Format::kBf16, kTokens>(p);
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

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    norm_project_1(const __grid_constant__ NormProjectParams p) {
  norm_project<1>(p);
}
extern "C" __global__ void __launch_bounds__(kThreads)
    norm_project_8(const __grid_constant__ NormProjectParams p) {
  norm_project<8>(p);
}
extern "C" __global__ void __launch_bounds__(kThreads)
    norm_project_16(const __grid_constant__ NormProjectParams p) {
  norm_project<16>(p);
}
// 64 registers a thread, so that two blocks of 512 threads, this and the next kernel's, fit.
extern "C" __global__ void __launch_bounds__(kAddThreads, 2)
    project_add_1(const __grid_constant__ ProjectAddParams p) {
  project_add_any<1>(p);
}
extern "C" __global__ void __launch_bounds__(kAddThreads)
    project_add_8(const __grid_constant__ ProjectAddParams p) {
  project_add_any<8>(p);
}
extern "C" __global__ void __launch_bounds__(kAddThreads)
    project_add_16(const __grid_constant__ ProjectAddParams p) {
  project_add_any<16>(p);
}
