// Decode step, one token: all of a layer behind its mixer, and the projections of the next mixer,
// in one launch.
//
//   project_add, norm_route, experts_gate_up, experts_down, norm_project
//
// One block a multiprocessor. Between stages stands a barrier of the grid instead of the end of a
// kernel, and before it waits a block has its next weights in flight: a stage fills its rings ahead
// of its wait. The router's choice stays in shared memory from gate/up to down. While the memory
// has little to do (router, choice) the next projections' first tiles are brought into the L2
// cache.
//
// Invariant: sums are those of the stages' own kernels, bit for bit. All blocks must be resident.
#include "constants.cuh"
#include "device/experts.cuh"
#include "device/grid_barrier.cuh"
#include "device/prefetch.cuh"
#include "device/project.cuh"

using namespace moray::cuda;

namespace {

constexpr int kHintedTiles = 3;  // of a block's projections, behind those its rings hold

// Where the stages run: all of them on the whole grid, the first behind the previous kernel, the
// others behind a barrier.
struct WholeGrid {
  __device__ __forceinline__ int block() const { return blockIdx.x; }
  __device__ __forceinline__ int blocks() const { return gridDim.x; }
  __device__ __forceinline__ void let_next_start() const {}
};
struct BehindKernel : WholeGrid {
  __device__ __forceinline__ void wait_for_previous() const { ::wait_for_previous(); }
};
struct BehindBarrier : WholeGrid {
  static constexpr int kDepth = tail_ring_depth(kArch);
  GridBarrier& barrier;
  __device__ __forceinline__ explicit BehindBarrier(GridBarrier& of) : barrier(of) {}
  __device__ __forceinline__ void wait_for_previous() const { barrier.wait(); }
};

// The tiles of this block in norm_project (project.cuh) that its rings do not hold from the start.
__device__ __forceinline__ void hint_inputs(const NormProjectParams& p) {
  int i = 0;
  while (i + 1 < p.target_count && static_cast<int>(blockIdx.x) >= p.targets[i + 1].first_block) {
    ++i;
  }
  const ProjectTarget& target = p.targets[i];
  const int local = static_cast<int>(blockIdx.x) - target.first_block;
  if (p.target_count == 0 || local >= target.blocks) return;
  const int bytes = target.weight.format == Format::kFp8 ? 1 : 2;
  const int64 row_bytes = static_cast<int64>(target.weight.stride) * bytes;
  const int held = tail_ring_depth(kArch) / bytes;  // tiles in a warp's ring
  for (int line = threadIdx.x; line < kHintedTiles * kHiddenGroups * kTileRows * row_bytes / 128;
       line += kHiddenThreads) {
    const int tile = static_cast<int>(line * 128 / (kTileRows * row_bytes));
    const int unit = local + (held + tile / kHiddenGroups) * target.blocks;
    const int64 at =
        (static_cast<int64>(unit) * kHiddenGroups + tile % kHiddenGroups) * kTileRows * row_bytes +
        line * 128 % (kTileRows * row_bytes);
    if (at < target.weight.rows * row_bytes) {
      prefetch_l2(static_cast<const char*>(target.weight.data) + at);
    }
  }
}

template <int kTokens>
__device__ __forceinline__ void layer_tail(const TailParams& p) {
  using Down =
      DownBlock<kTokens, tail_down_warps(kHiddenThreads / 32, kTopK, kExpertDim, kSharedDim),
                tail_down_depth(kArch)>;
  __shared__ ChosenExperts<kTokens> chosen;
  GridBarrier barrier(p.barrier);
  const BehindBarrier next(barrier);
  project_add<kTokens>(p.out, BehindKernel());
  barrier.arrive();
  hint_inputs(p.inputs);
  norm_route<kTokens>(p.route, next);
  barrier.wait();  // blocks without a tile of the router have not
  barrier.arrive();
  experts_gate_up<true>(p.experts, next, chosen);
  load_shared_weights(p.experts.routing, p.experts.tokens, chosen);
  barrier.arrive();
  experts_down<kTokens, Down>(p.experts, next, chosen, [](char*, int) {});
  let_next_start();
  if (p.inputs.target_count == 0) return;
  barrier.arrive();
  norm_project<kTokens>(p.inputs, next);
  barrier.wait();
}

}  // namespace

// 64 registers a thread: a block of delta_step fits beside.
extern "C" __global__ void __launch_bounds__(kHiddenThreads, 1024 / kHiddenThreads)
    layer_tail_1(const __grid_constant__ TailParams p) {
  layer_tail<1>(p);
}
