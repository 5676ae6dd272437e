// The W8A8 main loop of sm_90a: one warp copies, two warpgroups multiply.
//
// Thread 0 fills a ring of stages (a 128-column slice of 128 activation rows and 128 weight rows,
// 32 KiB) by bulk copies, and runs ahead across tiles; each of the warpgroups 1 and 2 multiplies 64
// of the activation rows with all weight rows of every stage and arrives, warp by warp, at the
// stage's `empty` barrier. A warpgroup has two slices' products in flight: while one is promoted to
// FP32 the other keeps the tensor cores busy, and the next tile's first runs beside the epilogue. A
// warpgroup without rows to write does not multiply.
//
// Shape: a 128 x 128 tile, because two slices and the sum (64 registers each) leave 40 for all
// else; 7 stages fill shared memory; one block a multiprocessor.
//
// Measured on an H200 at 8192 tokens, TFLOP/s of 12288 x 2048 and of 2048 x 4096 added to the
// residual: one product in flight 910 and 690; warpgroups taking turns at the tensor cores 750 and
// 490; two products in flight 1010 and 800; with the epilogue beside the next product 990 and 990.
// Pairs of blocks that share activation rows gain 2 % there, nothing elsewhere. What bounds it:
// products alone 1520, with promotion 1320; copies alone 2300.
#pragma once

#include "bulk.cuh"
#include "grid.cuh"
#include "w8a8_tile.cuh"
#include "wgmma.cuh"

#if __CUDA_ARCH__ == 900

inline constexpr int kRoom = kWgmmaBlock.stages;       // for stages, in shared memory
inline constexpr int kHalfBytes = 64 * kScaleColumns;  // one box
inline constexpr int kStageBytes = 4 * kHalfBytes;     // x rows 0..63, 64..127, weights low, high
static_assert(kStageBytes == kW8a8StageBytes && kRoom * 16 <= kW8a8BarrierBytes);

// A place in the ring. The barriers follow the room for stages.
template <int kStages>
struct Ring {
  uint32 base;       // of stage 0, 1024-byte aligned
  int stage = 0;     // next to be used
  uint32 phase = 0;  // parity of the round

  __device__ uint32 bytes() const { return base + stage * kStageBytes; }
  __device__ uint32 full() const { return base + kRoom * kStageBytes + stage * 16; }
  __device__ uint32 empty() const { return full() + 8; }
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// The room of the last stage, for a kernel whose ring does without it: float i of this multiplying
// thread at [256 i], i in 0..31.
__device__ __forceinline__ float* spare_floats() {
  extern __shared__ char w8a8_shared[];
  const uint32 start = shared_address(w8a8_shared);
  const uint32 base = (start + 1023) & ~1023u;
  char* spare = w8a8_shared + (base - start) + (kRoom - 1) * kStageBytes;
  return reinterpret_cast<float*>(spare) + (threadIdx.x - 128);
}

template <int kStages>
__device__ __forceinline__ void initialise(Ring<kStages> ring, int blocks) {
  for (ring.stage = 0; ring.stage < kStages; ++ring.stage) {
    barrier_init(ring.full(), 1);
    barrier_init(ring.empty(), 8 * blocks);  // the multiplying warps of all blocks
  }
  barrier_init_done();
}

template <class Work, int kStages>
__device__ __forceinline__ void produce(Work& work, Ring<kStages> ring, int blocks, int rank) {
  work.begin(blocks);
  const int stride = gridDim.x / blocks;
  for (Cursor at{int(blockIdx.x) / blocks, 0}; at.item < work.items();
       at = after<Work>(at, stride)) {
    const Tile tile = work.tile(at, rank);
    const void* low = work.low_map(tile);
    const void* high = work.high_map(tile);
    for (int slice = 0; slice < work.slices(); ++slice, ring.advance()) {
      const int column = slice * kScaleColumns;
      const uint32 to = ring.bytes();
      barrier_wait(ring.empty(), ring.phase ^ 1);
      barrier_expect(ring.full(), kStageBytes);
      if (blocks == 2) {
        load_box_shared(to + rank * kHalfBytes, work.x_map(), column, tile.x_row + 64 * rank, 0,
                        ring.full(), 3);
      } else {
        load_box(to, work.x_map(), column, tile.x_row, 0, ring.full());
        load_box(to + kHalfBytes, work.x_map(), column, tile.x_row + 64, 0, ring.full());
      }
      load_box(to + 2 * kHalfBytes, low, column, tile.low, tile.plane, ring.full());
      load_box(to + 3 * kHalfBytes, high, column, tile.high, tile.plane, ring.full());
    }
  }
}

// A multiplying warpgroup on its way through the ring.
template <int kStages>
struct Consumer {
  Ring<kStages> ring;  // at the next stage to be multiplied
  int warpgroup, lane, blocks;

  // Starts part = the next stage's product.
  __device__ void start(float (&part)[64]) {
    barrier_wait(ring.full(), ring.phase);
    const uint64 x = wgmma_rows(ring.bytes() + warpgroup * kHalfBytes);
    const uint64 weights = wgmma_rows(ring.bytes() + 2 * kHalfBytes);
    wgmma_begin(part);
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_e4m3(part, x + 2 * k, weights + 2 * k, k > 0);
    wgmma_end();
    ring.advance();
  }
  // Waits for the oldest product, of which kAfter started later, and gives its stage back.
  template <int kAfter>
  __device__ void finish(float (&part)[64]) const {
    wgmma_wait<kAfter>(part);
    give_back(kAfter + 1);
  }
  // The stage that was started `back` starts ago.
  __device__ void give_back(int back) const {
    Ring<kStages> done = ring;
    done.stage += done.stage < back ? kStages - back : -back;
    if (lane < blocks) barrier_arrive(done.empty(), lane);
  }
  __device__ void skip() {
    barrier_wait(ring.full(), ring.phase);
    ring.advance();
    give_back(1);
  }
};

// sum = the tile's product, whose first slice was started in `even`. Two products are in flight but
// for the tile's end: while one is scaled and added the other keeps the tensor cores busy.
template <int kStages>
__device__ __forceinline__ void accumulate(float (&sum)[64], float (&even)[64],
                                           Consumer<kStages>& consumer, ScaleCursor cursor,
                                           int slices, int scale_stride) {
  float odd[64];
#pragma unroll
  for (float& value : sum) value = 0;
  SliceScales even_scales = cursor.load(), odd_scales;
  int left = slices;
  for (; left > 2; left -= 2) {
    cursor.advance(scale_stride);
    odd_scales = cursor.load();
    consumer.start(odd);
    consumer.template finish<1>(even);
    promote(sum, even, even_scales);
    cursor.advance(scale_stride);
    even_scales = cursor.load();
    consumer.start(even);
    consumer.template finish<1>(odd);
    promote(sum, odd, odd_scales);
  }
  if (left == 2) {
    cursor.advance(scale_stride);
    odd_scales = cursor.load();
    consumer.start(odd);
    consumer.template finish<1>(even);
    promote(sum, even, even_scales);
    consumer.template finish<0>(odd);
    promote(sum, odd, odd_scales);
  } else {
    consumer.template finish<0>(even);
    promote(sum, even, even_scales);
  }
}

// The tiles of a block in order, but for those without rows for this warpgroup.
template <class Work>
struct Route {
  const Work& work;
  Cursor at;
  int stride, rank;
  Tile tile = {};

  // Moves `at` to a tile with rows for the consumer and takes it; gives the stages of those passed
  // over back. False when there is none.
  template <int kStages>
  __device__ bool take(Consumer<kStages>& consumer) {
    for (; at.item < work.items(); at = after<Work>(at, stride)) {
      tile = work.tile(at, rank);
      work.expect(after<Work>(at, stride));
      if (tile.rows > 64 * consumer.warpgroup) return true;
      for (int slice = 0; slice < work.slices(); ++slice) consumer.skip();
    }
    return false;
  }
};

// The first product of the next tile runs beside the epilogue of this one.
template <class Work, class Epilogue, int kStages>
__device__ __forceinline__ void consume(Work& work, Epilogue& epilogue, Ring<kStages> ring,
                                        int blocks, int rank) {
  work.begin(blocks);
  const int lane = threadIdx.x % 32;
  Consumer<kStages> consumer{ring, int(threadIdx.x) / 128 - 1, lane, blocks};
  const int row = threadIdx.x / 32 * 16 - 64 + lane / 4;  // of the tile; row + 8 as well
  Route<Work> route{work, {int(blockIdx.x) / blocks, 0}, int(gridDim.x) / blocks, rank};
  if (!route.take(consumer)) return;
  float even[64], sum[64];
  consumer.start(even);
  while (true) {
    const Tile tile = route.tile;
    const int pass = route.at.pass;
    epilogue.expect(tile, row);
    accumulate(sum, even, consumer, ScaleCursor(work.x(), tile, row), work.slices(),
               work.x().scale_stride);
    route.at = after<Work>(route.at, route.stride);
    if (!route.take(consumer)) {
      epilogue.take(tile, pass, sum, row);
      return;
    }
    consumer.start(even);
    epilogue.take(tile, pass, sum, row);
  }
}

// A block starts with 168 registers a thread; Work::kRegisters of a multiplying thread, 232 or 240,
// leave 40 or 24 to one that copies.
template <class Work, class Epilogue>
__device__ __forceinline__ void w8a8_run_wgmma(Work& work, Epilogue& epilogue) {
  extern __shared__ char w8a8_shared[];
  const Ring<Work::kStages> ring{(shared_address(w8a8_shared) + 1023) & ~1023u};
  const int blocks = cluster_blocks(), rank = cluster_rank();
  if (threadIdx.x == 0) initialise(ring, blocks);
  cluster_sync();
  wait_for_previous();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(3 * 168 - 2 * Work::kRegisters));
    if (threadIdx.x == 0) produce(work, ring, blocks, rank);
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Work::kRegisters));
    consume(work, epilogue, ring, blocks, rank);
  }
  cluster_sync();  // no block leaves while another may still write to it
}

#endif  // __CUDA_ARCH__ == 900
