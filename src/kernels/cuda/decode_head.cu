// Decode step: final norm + lm_head, and the greedy choice.
//
// norm_head streams 16-row tiles as norm_project does, for as long as the vocabulary lasts; each
// thread remembers the best logit among the outputs it finishes, so that greedy_step reads a few
// candidates a block instead of all logits.
#include "constants.cuh"
#include "device/grid.cuh"
#include "device/normed.cuh"
#include "device/partial_sums.cuh"

using namespace moray::cuda;

namespace {

constexpr int kSlices = kHiddenSlices;
constexpr int kGroups = groups_of(kHidden, kHiddenSpan);
constexpr int kThreads = warps_of(kHidden, kHiddenSpan) * 32;
constexpr Format kHeadFormat = kHeadFp8 ? Format::kFp8 : Format::kBf16;

extern __shared__ char4 shared_memory[];

__device__ __forceinline__ bool may_sample(const Sampleable& sampleable, int id) {
  if (id >= sampleable.limit) return false;
  return sampleable.banned == nullptr || !(sampleable.banned[id / 32] >> (id % 32) & 1);
}
// Larger logit, then lower id; only finite logits count.
__device__ __forceinline__ Candidate better(Candidate a, Candidate b) {
  if (b.id < 0 || !(fabsf(b.logit) <= 0x1.fffffep127f)) return a;
  if (a.id < 0 || b.logit > a.logit) return b;
  return b.logit == a.logit && b.id < a.id ? b : a;
}
template <int kLanes>
__device__ __forceinline__ Candidate best_of_lanes(Candidate mine) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step >>= 1) {
    const Candidate other{__shfl_xor_sync(~0u, mine.logit, step),
                          __shfl_xor_sync(~0u, mine.id, step)};
    mine = better(mine, other);
  }
  return mine;
}

template <int kTokens>
__device__ __forceinline__ void norm_head(const NormHeadParams& p) {
  constexpr int kDepth = head_ring_depth(kArch, kTokens);
  constexpr int kRowSets = kThreads / kTileRows;  // threads finish 16 rows of a token at a time
  static_assert(kRowSets >= 16);
  __shared__ NormSums sums;
  __shared__ Candidate best[kRowSets];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int slice = warp % kSlices, group = warp / kSlices;
  char* const rings = reinterpret_cast<char*>(shared_memory);
  const int rows = kTokens == 1 ? 1 : p.rows;
  const PartialSums<kTokens> partials{rings + kThreads / 32 * kDepth * kRingSlotBytes,
                                      scratch_bytes(kArch, rows), rows};
  const Matrix& w = p.head;
  const int units = ((w.rows + kTileRows - 1) / kTileRows + kGroups - 1) / kGroups;
  const int blocks = gridDim.x;
  const int count = (units - static_cast<int>(blockIdx.x) + blocks - 1) / blocks;
  const auto tile_at = [&](int j, int of_group) {
    return (static_cast<int>(blockIdx.x) + j * blocks) * kGroups + of_group;
  };
  const auto locate = [&](int j) {
    return tile_of<kHeadFormat>(static_cast<const char*>(w.data), w.scales, w.rows,
                                stride_of(kHidden), (kHidden + 127) / 128, tile_at(j, group));
  };
  WeightRing<kHeadFormat, kHiddenSpan, kDepth, stride_of(kHidden)> ring(rings, warp, 0, kHidden,
                                                                        slice, lane);
  ring.fill(count, locate);
  NormWeights norm;
  norm.load(p.norm_weight, slice, lane);
  let_next_start();
  wait_for_previous();
  Activations<widths_of(kTokens), kHiddenSpan> x;
  norm_slice<kHeadFormat, kTokens>(x, p.residual + (p.tokens - rows) * kHidden, rows, norm, sums,
                                   partials.scratch + warp * partials.warp_bytes, nullptr, slice,
                                   lane);
  // This thread finishes row r of token `token` in the tiles `set`, set + sets, ... of each batch.
  const int r = threadIdx.x % kTileRows, row_set = threadIdx.x / kTileRows;
  const int token = row_set % rows, sets = kRowSets / rows, set = row_set / rows;
  Candidate mine{0, -1};
  ring.run(
      count, locate, x, [](int) {},
      [&](int j, const float(&sum)[widths_of(kTokens)][4]) {
        partials.put(warp, j, sum, lane);
        int first;
        if (!partials.batch_done(j, count, first) || set >= sets) return;
        for (int tile = set; tile < (j - first + 1) * kGroups; tile += sets) {
          const int of_group = tile % kGroups, at = first + tile / kGroups;
          const int row = tile_at(at, of_group) * kTileRows + r;
          if (row >= w.rows) continue;
          const float logit = partials.total(of_group * kSlices, kSlices, at, token, r);
          p.logits[static_cast<int64>(token) * w.rows + row] = logit;
          if (may_sample(p.sampleable, row)) mine = better(mine, {logit, row});
        }
      });
  if (p.candidates == nullptr) return;
  mine = best_of_lanes<kTileRows>(mine);
  if (r == 0) best[row_set] = mine;
  __syncthreads();
  if (threadIdx.x < rows) {
    Candidate winner{0, -1};
    for (int i = 0; i < sets; ++i) winner = better(winner, best[i * rows + threadIdx.x]);
    p.candidates[threadIdx.x * blocks + blockIdx.x] = winner;
  }
}

constexpr int kGreedyThreads = 512;  // a warp for each of up to 16 rows

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    norm_head_1(const __grid_constant__ NormHeadParams p) {
  norm_head<1>(p);
}
extern "C" __global__ void __launch_bounds__(kThreads)
    norm_head_8(const __grid_constant__ NormHeadParams p) {
  norm_head<8>(p);
}
extern "C" __global__ void __launch_bounds__(kThreads)
    norm_head_16(const __grid_constant__ NormHeadParams p) {
  norm_head<16>(p);
}

extern "C" __global__ void __launch_bounds__(kGreedyThreads)
    greedy_step(const __grid_constant__ GreedyParams p) {
  const int row = threadIdx.x / 32, lane = threadIdx.x % 32;
  let_next_start();
  wait_for_previous();
  if (row >= p.rows) return;
  Candidate mine{0, -1};
  for (int i = lane; i < p.candidate_count; i += 32) {
    const uint16* at = reinterpret_cast<const uint16*>(p.candidates + row * p.candidate_count + i);
    const float logit = load_fresh_float(reinterpret_cast<const float*>(at));
    const int id = __float_as_int(load_fresh_float(reinterpret_cast<const float*>(at) + 1));
    mine = better(mine, {logit, id});
  }
  mine = best_of_lanes<32>(mine);
  if (lane != 0) return;
  p.chosen[row] = mine.id;
  if (p.step == nullptr || row != p.rows - 1) return;
  const int position = p.step->position + p.step->count;
  p.step->position = position;
  p.step->count = 1;
  p.step->tokens[0] = mine.id;
  if (p.ring == nullptr) return;
  const uint64 entry = static_cast<uint64>(position) << 32 | static_cast<uint32>(mine.id);
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p.ring + position % p.ring_entries),
               "l"(entry)
               : "memory");
}
