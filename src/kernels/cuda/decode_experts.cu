// Decode step: the feed-forward half of a layer in three kernels.
//
//   norm_route       logits of the router and the shared expert's gate/up, which need no choice
//   experts_gate_up  each block chooses the experts from the logits, then streams gate/up tiles
//   experts_down     each block owns 16 rows of the residual and streams them of every expert
//
// experts_gate_up lets its successor start only after its own wait, so that norm_route has finished
// by then: experts_down may read the logits, choose, and start loading weights before it waits.
#include "constants.cuh"
#include "device/choose_experts.cuh"
#include "device/grid.cuh"
#include "device/normed.cuh"
#include "device/partial_sums.cuh"
#include "device/residual_rows.cuh"

using namespace moray::cuda;

namespace {

constexpr int kSlices = kHiddenSlices;
constexpr int kGroups = groups_of(kHidden, kHiddenSpan);
constexpr int kThreads = warps_of(kHidden, kHiddenSpan) * 32;
constexpr int kHiddenScaleCols = (kHidden + 127) / 128;
constexpr int kInnerStride = inner_stride(kExpertDim, kSharedDim);
constexpr int kSlots = kTopK + 1;
constexpr Format kExpertFormat = kExpertFp8 ? Format::kFp8 : Format::kBf16;
constexpr Format kSharedFormat = kSharedFp8 ? Format::kFp8 : Format::kBf16;

extern __shared__ char4 shared_memory[];

__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + expf(-x));
}
__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// The gate (which = 0) or up (1) tile of a record.
template <Format kFormat>
__device__ __forceinline__ TileRef gate_up_tile(const ExpertRecords& records, const char* record,
                                                int tile, int which) {
  return tile_of<kFormat>(
      record + (which ? records.up : 0),
      reinterpret_cast<const float*>(record + (which ? records.up_scales : records.gate_scales)),
      records.width, stride_of(kHidden), kHiddenScaleCols, tile);
}

// A block's place and its shared memory, for kernels over the hidden columns.
template <int kTokens>
struct HiddenBlock {
  static constexpr int kDepth = ring_depth(kArch, kTokens);
  int tokens, warp, lane, slice, group;
  PartialSums<kTokens> partials;

  __device__ __forceinline__ explicit HiddenBlock(int step_tokens)
      : tokens(kTokens == 1 ? 1 : step_tokens),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        slice(warp % kSlices),
        group(warp / kSlices),
        partials{reinterpret_cast<char*>(shared_memory) + kThreads / 32 * kDepth * kRingSlotBytes,
                 scratch_bytes(kArch, tokens), tokens} {}
  template <Format kFormat>
  using Ring = WeightRing<kFormat, kHiddenSpan, kDepth, stride_of(kHidden)>;
  template <Format kFormat>
  __device__ __forceinline__ Ring<kFormat> ring() const {
    return Ring<kFormat>(reinterpret_cast<char*>(shared_memory), warp, 0, kHidden, slice, lane);
  }
  __device__ __forceinline__ char* staging() const {
    return partials.scratch + warp * partials.warp_bytes;
  }
};

// One tile a group of a matrix over the normed input; y[token * y_stride + row].
template <Format kFormat, int kTokens>
__device__ __forceinline__ void route_rows(const NormRouteParams& p, const Matrix& w,
                                           int block_tile, float* y, int y_stride, Bfloat16* store,
                                           NormSums& sums) {
  const HiddenBlock<kTokens> block(p.tokens);
  const auto locate = [&](int) {
    return tile_of<kFormat>(static_cast<const char*>(w.data), w.scales, w.rows, stride_of(kHidden),
                            kHiddenScaleCols, block_tile + block.group);
  };
  auto ring = block.template ring<kFormat>();
  ring.fill(1, locate);
  NormWeights norm;
  norm.load(p.norm_weight, block.slice, block.lane);
  let_next_start();
  wait_for_previous();
  Activations<widths_of(kTokens), kHiddenSpan> x;
  norm_slice<kFormat, kTokens>(x, p.residual, block.tokens, norm, sums, block.staging(),
                               block.group == 0 ? store : nullptr, block.slice, block.lane);
  ring.run(
      1, locate, x, [](int) {},
      [&](int, const float(&sum)[widths_of(kTokens)][4]) {
        block.partials.put(block.warp, 0, sum, block.lane);
      });
  __syncthreads();
  for (int i = threadIdx.x; i < kGroups * block.tokens * kTileRows; i += kThreads) {
    const int r = i % kTileRows, token = i / kTileRows % block.tokens;
    const int of_group = i / kTileRows / block.tokens;
    const int row = (block_tile + of_group) * kTileRows + r;
    if (row < w.rows) {
      y[token * y_stride + row] = block.partials.total(of_group * kSlices, kSlices, 0, token, r);
    }
  }
}

// inner of one unit: row r of the pair of tiles `first_tile` and the next, for all its tokens.
template <int kTokens, typename Slot>
__device__ __forceinline__ void write_inner(const PartialSums<kTokens>& partials, Bfloat16* inner,
                                            int of_group, int first_tile, int row, int r, int width,
                                            int token, const Slot& slot_of) {
  const int slot = slot_of(token);
  if (slot < 0 || row >= width) return;
  const float gate = partials.total(of_group * kSlices, kSlices, first_tile, token, r);
  const float up = partials.total(of_group * kSlices, kSlices, first_tile + 1, token, r);
  inner[(token * kSlots + slot) * kInnerStride + row] = float_bf16(silu(gate) * up);
}

template <int kTokens>
__device__ __forceinline__ void route_shared(const NormRouteParams& p, int unit, NormSums& sums) {
  const HiddenBlock<kTokens> block(p.tokens);
  const auto locate = [&](int j) {
    return gate_up_tile<kSharedFormat>(p.shared, p.shared.base, unit * kGroups + block.group, j);
  };
  auto ring = block.template ring<kSharedFormat>();
  ring.fill(2, locate);
  NormWeights norm;
  norm.load(p.norm_weight, block.slice, block.lane);
  let_next_start();
  wait_for_previous();
  Activations<widths_of(kTokens), kHiddenSpan> x;
  norm_slice<kSharedFormat, kTokens>(x, p.residual, block.tokens, norm, sums, block.staging(),
                                     nullptr, block.slice, block.lane);
  ring.run(
      2, locate, x, [](int) {},
      [&](int j, const float(&sum)[widths_of(kTokens)][4]) {
        block.partials.put(block.warp, j, sum, block.lane);
      });
  __syncthreads();
  for (int i = threadIdx.x; i < kGroups * block.tokens * kTileRows; i += kThreads) {
    const int r = i % kTileRows, token = i / kTileRows % block.tokens;
    const int of_group = i / kTileRows / block.tokens;
    write_inner(block.partials, p.routing.inner, of_group, 0,
                (unit * kGroups + of_group) * kTileRows + r, r, kSharedDim, token,
                [](int) { return kTopK; });
  }
}

// Blocks: the router's tiles, then the shared gate's, then the shared expert's pairs.
template <int kTokens>
__device__ __forceinline__ void norm_route(const NormRouteParams& p) {
  __shared__ NormSums sums;
  constexpr int kRouterBlocks = ((kExperts + kTileRows - 1) / kTileRows + kGroups - 1) / kGroups;
  const int block = blockIdx.x;
  if (block < kRouterBlocks) {
    Bfloat16* const store = block == 0 ? p.routing.x : nullptr;
    if (p.router.format == Format::kFp8) {
      route_rows<Format::kFp8, kTokens>(p, p.router, block * kGroups, p.routing.logits, kExperts,
                                        store, sums);
    } else {
      route_rows<Format::kBf16, kTokens>(p, p.router, block * kGroups, p.routing.logits, kExperts,
                                         store, sums);
    }
  } else if constexpr (kSharedDim > 0) {
    if (block > kRouterBlocks) {
      route_shared<kTokens>(p, block - kRouterBlocks - 1, sums);
    } else if (p.shared_gate.format == Format::kFp8) {
      route_rows<Format::kFp8, kTokens>(p, p.shared_gate, 0, p.routing.shared_logit, 1, nullptr,
                                        sums);
    } else {
      route_rows<Format::kBf16, kTokens>(p, p.shared_gate, 0, p.routing.shared_logit, 1, nullptr,
                                         sums);
    }
  }
}

// Units of work: (distinct expert, pair of gate and up tiles), dealt to groups of warps in turn.
template <int kTokens>
__device__ __forceinline__ void experts_gate_up(const ExpertsParams& p) {
  constexpr int kPairs = (kExpertDim + kTileRows - 1) / kTileRows;
  __shared__ ChosenExperts<kTokens> chosen;
  __shared__ Pack16 table[kChoiceTableBytes / 16];
  const HiddenBlock<kTokens> block(p.tokens);
  wait_for_previous();
  let_next_start();
  Activations<widths_of(kTokens), kHiddenSpan> x;
  load_activations<kExpertFormat>(
      x,
      [&](int token) -> const Bfloat16* {
        return token < block.tokens ? p.routing.x + token * kHidden + block.slice * kSliceUnit
                                    : nullptr;
      },
      kHidden - block.slice * kSliceUnit, block.lane);
  choose_experts<false>(p.routing.logits, block.tokens, chosen, reinterpret_cast<uint8*>(table));
  const int units = chosen.count * kPairs;
  const int stride = gridDim.x * kGroups;
  const int count = 2 * ((units - static_cast<int>(blockIdx.x) * kGroups + stride - 1) / stride);
  const auto unit_at = [&](int pair, int of_group) {
    return (blockIdx.x + pair * gridDim.x) * kGroups + of_group;
  };
  const auto locate = [&](int j) -> TileRef {
    const int unit = unit_at(j >> 1, block.group);
    if (unit >= units) return {p.experts.base, nullptr, 0};
    const char* const record = p.experts.base + chosen.list[unit / kPairs] * p.experts.record_bytes;
    return gate_up_tile<kExpertFormat>(p.experts, record, unit % kPairs, j & 1);
  };
  if (count <= 0) return;
  auto ring = block.template ring<kExpertFormat>();
  ring.fill(count, locate);
  scale_activations<kExpertFormat>(x, block.lane);
  static_assert(kBatchTiles == 2);  // a batch is a pair
  ring.run(
      count, locate, x, [](int) {},
      [&](int j, const float(&sum)[widths_of(kTokens)][4]) {
        block.partials.put(block.warp, j, sum, block.lane);
        int first;
        if (!block.partials.batch_done(j, count, first)) return;
        for (int i = threadIdx.x; i < kGroups * block.tokens * kTileRows; i += kThreads) {
          const int r = i % kTileRows, token = i / kTileRows % block.tokens;
          const int of_group = i / kTileRows / block.tokens;
          const int unit = unit_at(j >> 1, of_group);
          if (unit >= units) continue;
          write_inner(block.partials, p.routing.inner, of_group, first,
                      unit % kPairs * kTileRows + r, r, kExpertDim, token, [&](int of_token) {
                        const uint8 slot = chosen.slots[unit / kPairs][of_token];
                        return slot == kNoSlot ? -1 : static_cast<int>(slot);
                      });
        }
      });
}

constexpr int kInnerSlices = inner_slices(kExpertDim, kSharedDim);
constexpr int kInnerColumns = kInnerSpan * kSliceUnit;  // of a slice

// One entry (an expert's rows of this block) at a time for each group of kInnerSlices warps.
template <int kTokens>
struct DownBlock {
  static constexpr int kWarps = down_warps(kArch, kTokens, kTopK, kExpertDim, kSharedDim);
  static constexpr int kDownGroups = kWarps / kInnerSlices;
  static constexpr int kDepth = down_ring_depth(kArch, kTokens, kTopK, kExpertDim, kSharedDim);
  const ExpertsParams& p;
  const ChosenExperts<kTokens>& chosen;
  float* products;  // [token, slot, slice, row] in shared memory
  int tokens, warp, lane, slice, group;

  __device__ __forceinline__ float* product(int token, int slot, int of_slice) const {
    return products + ((token * kSlots + slot) * kInnerSlices + of_slice) * kTileRows;
  }
  __device__ __forceinline__ int slot_of(int entry, int token) const {
    if (token >= tokens) return -1;
    if (entry >= chosen.count) return kTopK;
    const uint8 slot = chosen.slots[entry][token];
    return slot == kNoSlot ? -1 : static_cast<int>(slot);
  }
  template <Format kFormat, int kDim>
  __device__ __forceinline__ TileRef tile(int entry) const {
    const bool shared = entry >= chosen.count;
    const ExpertRecords& records = shared ? p.shared : p.experts;
    const char* record = records.base;
    if (!shared) record += chosen.list[entry] * records.record_bytes;
    return tile_of<kFormat>(record + records.down,
                            reinterpret_cast<const float*>(record + records.down_scales), kHidden,
                            stride_of(kDim), (kDim + 127) / 128, blockIdx.x);
  }
};

// The entries first, first + kDownGroups, ... below `end`, all of width kDim: fill() before the
// wait for the previous kernel, run() after it.
template <Format kFormat, int kDim, int kTokens>
struct DownStream {
  using Block = DownBlock<kTokens>;
  using X = Activations<widths_of(kTokens), kInnerSpan>;
  // A second set of registers for the next entry's activations, where there is room for it.
  static constexpr bool kLoadAhead = kTokens > 1 && widths_of(kTokens) == 1;
  const Block& block;
  int first, count;
  WeightRing<kFormat, kInnerSpan, Block::kDepth, stride_of(kDim)> ring;

  __device__ __forceinline__ DownStream(const Block& of, int begin, int end)
      : block(of),
        first(begin + of.group),
        count(max(0, (end - first + Block::kDownGroups - 1) / Block::kDownGroups)),
        ring(reinterpret_cast<char*>(shared_memory), of.warp, 0, kDim, of.slice, of.lane) {}
  __device__ __forceinline__ int entry(int j) const { return first + j * Block::kDownGroups; }
  __device__ __forceinline__ void fill() {
    ring.fill(count, [&](int j) { return block.template tile<kFormat, kDim>(entry(j)); });
  }
  __device__ __forceinline__ void load(X& x, int j) const {
    load_activations<kFormat>(
        x,
        [&](int token) -> const Bfloat16* {
          const int slot = block.slot_of(entry(j), token);
          if (slot < 0) return nullptr;
          return block.p.routing.inner + (token * kSlots + slot) * kInnerStride +
                 block.slice * kInnerColumns;
        },
        kDim - block.slice * kInnerColumns, block.lane);
  }
  __device__ __forceinline__ void run() {
    X x, next;
    if (kLoadAhead && count > 0) load(next, 0);
    ring.run(
        count, [&](int j) { return block.template tile<kFormat, kDim>(entry(j)); }, x,
        [&](int j) {
          if constexpr (kLoadAhead) {
            x = next;
            if (j + 1 < count) load(next, j + 1);
          } else {
            load(x, j);
          }
          scale_activations<kFormat>(x, block.lane);
        },
        [&](int j, const float(&sum)[widths_of(kTokens)][4]) { keep(entry(j), sum); });
  }

 private:
  // Each (token, slot, slice) belongs to one warp.
  __device__ __forceinline__ void keep(int of_entry,
                                       const float (&sum)[widths_of(kTokens)][4]) const {
    const int g = block.lane >> 2, t = block.lane & 3;
#pragma unroll
    for (int n = 0; n < widths_of(kTokens); ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = n * 8 + t * 2 + i;
        const int slot = block.slot_of(of_entry, token);
        if (slot < 0) continue;
        float* const to = block.product(token, slot, block.slice);
        to[g] = sum[n][i];
        to[g + 8] = sum[n][i + 2];
      }
    }
  }
};

template <int kTokens>
__device__ __forceinline__ void experts_down(const ExpertsParams& p) {
  using Block = DownBlock<kTokens>;
  // One ring serves routed and shared experts if they are of one format and padded alike.
  constexpr bool kTogether =
      kSharedDim == 0 || (kExpertFormat == kSharedFormat && kExpertDim == kSharedDim);
  __shared__ ChosenExperts<kTokens> chosen;
  __shared__ ResidualRows<kTokens> residual;
  char* const after_rings =
      reinterpret_cast<char*>(shared_memory) + Block::kWarps * Block::kDepth * kRingSlotBytes;
  const int tokens = kTokens == 1 ? 1 : p.tokens;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Block block{p,
                    chosen,
                    reinterpret_cast<float*>(after_rings),
                    tokens,
                    warp,
                    lane,
                    warp % kInnerSlices,
                    warp / kInnerSlices};
  let_next_start();
  if (kSharedDim > 0 && threadIdx.x < tokens) {
    chosen.shared_weight[threadIdx.x] =
        sigmoid(load_fresh_float(p.routing.shared_logit + threadIdx.x));
  }
  choose_experts<true>(p.routing.logits, tokens, chosen, reinterpret_cast<uint8*>(after_rings));
  DownStream<kExpertFormat, kExpertDim, kTokens> routed(
      block, 0, chosen.count + (kTogether && kSharedDim > 0 ? 1 : 0));
  routed.fill();
  wait_for_previous();
  residual.start(p.residual, kHidden, blockIdx.x, tokens, threadIdx.x);
  commit_copies();
  routed.run();
  if constexpr (!kTogether) {
    DownStream<kSharedFormat, kSharedDim, kTokens> shared(block, chosen.count, chosen.count + 1);
    shared.fill();
    shared.run();
  }
  wait_copies<0>();
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * kTileRows; i += blockDim.x) {
    const int r = i % kTileRows, token = i / kTileRows, row = blockIdx.x * kTileRows + r;
    if (row >= kHidden) continue;
    float sum = bf16_float(residual.old[token][r]);
#pragma unroll
    for (int slot = 0; slot < kTopK + (kSharedDim > 0 ? 1 : 0); ++slot) {
      float product = 0;
#pragma unroll
      for (int s = 0; s < kInnerSlices; ++s) product += block.product(token, slot, s)[r];
      sum = fmaf(slot < kTopK ? chosen.weights[token][slot] : chosen.shared_weight[token], product,
                 sum);
    }
    p.residual[token * kHidden + row] = float_bf16(sum);
  }
  if (blockIdx.x != 0) return;
  for (int i = threadIdx.x; i < tokens * kTopK; i += blockDim.x) {
    p.routing.expert_ids[i] = chosen.ids[i / kTopK][i % kTopK];
    p.routing.expert_weights[i] = chosen.weights[i / kTopK][i % kTopK];
  }
  if (kSharedDim > 0 && threadIdx.x < tokens) {
    p.routing.shared_weight[threadIdx.x] = chosen.shared_weight[threadIdx.x];
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    norm_route_1(const __grid_constant__ NormRouteParams p) {
  norm_route<1>(p);
}
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    norm_route_8(const __grid_constant__ NormRouteParams p) {
  norm_route<8>(p);
}
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    norm_route_16(const __grid_constant__ NormRouteParams p) {
  norm_route<16>(p);
}
// 56 registers a thread: a block of experts_down, 576 threads of 64, fits beside.
extern "C" __global__ void __launch_bounds__(kThreads + 64, 2)
    experts_gate_up_1(const __grid_constant__ ExpertsParams p) {
  experts_gate_up<1>(p);
}
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    experts_gate_up_8(const __grid_constant__ ExpertsParams p) {
  experts_gate_up<8>(p);
}
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    experts_gate_up_16(const __grid_constant__ ExpertsParams p) {
  experts_gate_up<16>(p);
}
// At most 36864 registers a block (18 warps of 64 a thread), what experts_gate_up_1 leaves.
constexpr int kDownBeside = DownBlock<1>::kWarps * 32 * 16 / 9;
extern "C" __global__ void __launch_bounds__(kDownBeside <= 1024 ? kDownBeside : 1024)
    experts_down_1(const __grid_constant__ ExpertsParams p) {
  experts_down<1>(p);
}
extern "C" __global__ void __launch_bounds__(DownBlock<8>::kWarps * 32)
    experts_down_8(const __grid_constant__ ExpertsParams p) {
  experts_down<8>(p);
}
extern "C" __global__ void __launch_bounds__(DownBlock<16>::kWarps * 32)
    experts_down_16(const __grid_constant__ ExpertsParams p) {
  experts_down<16>(p);
}
