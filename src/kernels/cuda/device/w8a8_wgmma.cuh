// The W8A8 main loop of sm_90a: one warp copies, two warpgroups multiply.
//
// Thread 0 fills a ring of stages (a 128-column slice of 128 activation rows and 128 weight rows,
// 32 KiB) by bulk copies; each of the warpgroups 1 and 2 multiplies 64 of the activation rows with
// all weight rows of every stage, promotes the slice to FP32 while the other multiplies, and
// arrives at the stage's `empty` barrier, warp by warp. Copies run ahead across tiles, so an
// epilogue is covered by them. A warpgroup without rows to write does not multiply.
//
// Shape: 128 x 128 because two accumulators (slice and sum) of 64 registers each leave room for the
// epilogue; 6 stages = 192 KiB of the 227 KiB; one block a multiprocessor. A pair of blocks reads
// 24 KiB from L2 for each slice instead of 32: without it L2 is the limit.
#pragma once

#include "bulk.cuh"
#include "grid.cuh"
#include "w8a8_tile.cuh"
#include "wgmma.cuh"

#if __CUDA_ARCH__ == 900

inline constexpr int kStages = kWgmmaBlock.stages;
inline constexpr int kHalfBytes = 64 * kScaleColumns;  // one box
inline constexpr int kStageBytes = 4 * kHalfBytes;     // x rows 0..63, 64..127, weights low, high
static_assert(kStageBytes == kW8a8StageBytes && kStages * 16 <= kW8a8BarrierBytes);

struct Ring {
  uint32 base;       // of stage 0, 1024-byte aligned; the barriers follow the last stage
  int stage = 0;     // next to be used
  uint32 phase = 0;  // parity of the round

  __device__ uint32 bytes() const { return base + stage * kStageBytes; }
  __device__ uint32 full() const { return base + kStages * kStageBytes + stage * 16; }
  __device__ uint32 empty() const { return full() + 8; }
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// 32 KiB behind the barriers, for an epilogue that asks for them: float i of this multiplying
// thread at [256 i].
__device__ __forceinline__ float* spare_floats() {
  extern __shared__ char w8a8_shared[];
  const uint32 start = shared_address(w8a8_shared);
  const uint32 base = (start + 1023) & ~1023u;
  char* spare = w8a8_shared + (base - start) + kStages * kStageBytes + kW8a8BarrierBytes;
  return reinterpret_cast<float*>(spare) + (threadIdx.x - 128);
}

__device__ __forceinline__ void initialise(Ring ring, int blocks) {
  for (ring.stage = 0; ring.stage < kStages; ++ring.stage) {
    barrier_init(ring.full(), 1);
    barrier_init(ring.empty(), 8 * blocks);  // the multiplying warps of all blocks
  }
  barrier_init_done();
}

template <class Work>
__device__ __forceinline__ void produce(Work& work, Ring ring, int blocks, int rank) {
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
struct Consumer {
  Ring ring;  // at the next stage to be multiplied
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
    Ring done = ring;
    done.stage += done.stage < back ? kStages - back : -back;
    if (lane < blocks) barrier_arrive(done.empty(), lane);
  }
  __device__ void skip() {
    barrier_wait(ring.full(), ring.phase);
    ring.advance();
    give_back(1);
  }
};

// sum = the tile's product. Two products are in flight but for the tile's ends: while one is scaled
// and added the other keeps the tensor cores busy.
__device__ __forceinline__ void accumulate(float (&sum)[64], Consumer& consumer, ScaleCursor cursor,
                                           int slices, int scale_stride) {
  float even[64], odd[64];
#pragma unroll
  for (float& value : sum) value = 0;
  SliceScales even_scales = cursor.load(), odd_scales;
  consumer.start(even);
  int left = slices;
  for (; left > 2; left -= 2) {
    cursor.advance(scale_stride);
    odd_scales = cursor.load();
    consumer.start(odd);
    consumer.finish<1>(even);
    promote(sum, even, even_scales);
    cursor.advance(scale_stride);
    even_scales = cursor.load();
    consumer.start(even);
    consumer.finish<1>(odd);
    promote(sum, odd, odd_scales);
  }
  if (left == 2) {
    cursor.advance(scale_stride);
    odd_scales = cursor.load();
    consumer.start(odd);
    consumer.finish<1>(even);
    promote(sum, even, even_scales);
    consumer.finish<0>(odd);
    promote(sum, odd, odd_scales);
  } else {
    consumer.finish<0>(even);
    promote(sum, even, even_scales);
  }
}

template <class Work, class Epilogue>
__device__ __forceinline__ void consume(Work& work, Epilogue& epilogue, Ring ring, int blocks,
                                        int rank) {
  work.begin(blocks);
  const int lane = threadIdx.x % 32;
  Consumer consumer{ring, int(threadIdx.x) / 128 - 1, lane, blocks};
  const int row = threadIdx.x / 32 * 16 - 64 + lane / 4;  // of the tile; row + 8 as well
  const int stride = gridDim.x / blocks;
  const int slices = work.slices();
  for (Cursor at{int(blockIdx.x) / blocks, 0}; at.item < work.items();
       at = after<Work>(at, stride)) {
    const Tile tile = work.tile(at, rank);
    if (tile.rows <= 64 * consumer.warpgroup) {
      for (int slice = 0; slice < slices; ++slice) consumer.skip();
      continue;
    }
    float sum[64];
    accumulate(sum, consumer, ScaleCursor(work.x(), tile, row), slices, work.x().scale_stride);
    epilogue.take(tile, at.pass, sum, row);
  }
}

template <class Work, class Epilogue>
__device__ __forceinline__ void w8a8_run_wgmma(Work& work, Epilogue& epilogue) {
  extern __shared__ char w8a8_shared[];
  const Ring ring{(shared_address(w8a8_shared) + 1023) & ~1023u};
  const int blocks = cluster_blocks(), rank = cluster_rank();
  if (threadIdx.x == 0) initialise(ring, blocks);
  cluster_sync();
  wait_for_previous();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) produce(work, ring, blocks, rank);
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    consume(work, epilogue, ring, blocks, rank);
  }
  cluster_sync();  // no block leaves while another may still write to it
}

#endif  // __CUDA_ARCH__ == 900
