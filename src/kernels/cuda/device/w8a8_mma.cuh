// The W8A8 main loop of sm_89 and sm_120a: eight warps copy by cp.async and multiply by mma.sync.
//
// A stage holds a 128-column slice of 128 activation rows and 128 weight rows (32 KiB) in the same
// swizzle as on sm_90: the 16-byte piece c of row r at r * 128 + (c ^ r % 8) * 16. A warp
// multiplies 16 activation rows with all 128 weight rows: it reads 18 KiB of shared memory a slice,
// 1152 of the 2048 cycles that the fastest of these tensor cores needs, and its sums lie as a
// warpgroup's do. Three stages fill the 99 KiB of these cards; one block of 256 threads a
// multiprocessor.
#pragma once

#include "barrier.cuh"
#include "e4m3_mma.cuh"
#include "grid.cuh"
#include "w8a8_tile.cuh"

inline constexpr int kMmaStages = kMmaBlock.stages;
inline constexpr int kOperandBytes = 128 * kScaleColumns;

__device__ __forceinline__ void copy_piece(uint32 to, const uint8* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// This thread's share of a slice: 16-byte piece threadIdx % 8 of every 32nd row of both operands.
struct SliceSource {
  const uint8* x[4];
  const uint8* weights[4];
  uint32 offset[4];

  template <class Work>
  __device__ SliceSource(const Work& work, const Tile& tile) {
    const int piece = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = threadIdx.x / 8 + 32 * i;
      const int x_row = min(tile.x_row + row, work.x().rows - 1);
      x[i] = work.x().codes + int64(x_row) * work.x().cols + piece * 16;
      weights[i] = work.weight_row(tile, row) + piece * 16;
      offset[i] = row * kScaleColumns + (piece ^ (row % 8)) * 16;
    }
  }
  __device__ void copy(uint32 stage, int slice) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_piece(stage + offset[i], x[i] + slice * kScaleColumns);
      copy_piece(stage + kOperandBytes + offset[i], weights[i] + slice * kScaleColumns);
    }
  }
};

// part = the stage's product, for this warp's 16 rows. Lane l points at row l % 16 of the
// activations (pieces 2 k, 2 k + 1 by l / 16), and at row l % 8 + 8 (l / 16) of each 16 weight rows
// (pieces by l / 8 % 2).
__device__ __forceinline__ void multiply_stage(float (&part)[64], uint32 stage) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32 x_row = stage + (warp * 16 + lane % 16) * kScaleColumns;
  const uint32 weight_row = stage + kOperandBytes + (lane % 8 + lane / 16 * 8) * kScaleColumns;
#pragma unroll
  for (float& value : part) value = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32 a[4];
    load_matrices(a, x_row + ((2 * k + lane / 16) ^ (lane % 8)) * 16);
#pragma unroll
    for (int pair = 0; pair < 8; ++pair) {
      uint32 b[4];
      load_matrices(
          b, weight_row + pair * 16 * kScaleColumns + ((2 * k + lane / 8 % 2) ^ (lane % 8)) * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float* d = part + 8 * pair + 4 * i;
        mma_e4m3(d[0], d[1], d[2], d[3], a, b[2 * i], b[2 * i + 1]);
      }
    }
  }
}

template <class Work>
__device__ __forceinline__ void accumulate_tile(float (&sum)[64], const Work& work,
                                                const Tile& tile, uint32 base, int row) {
  const int slices = work.slices();
  const SliceSource source(work, tile);
  ScaleCursor cursor(work.x(), tile, row);
  const auto start = [&](int slice) {
    if (slice < slices) source.copy(base + slice % kMmaStages * 2 * kOperandBytes, slice);
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  __syncthreads();  // the stages of the tile before have been read
#pragma unroll
  for (int i = 0; i < kMmaStages - 1; ++i) start(i);
#pragma unroll
  for (float& value : sum) value = 0;
  for (int slice = 0; slice < slices; ++slice) {
    const SliceScales scales = cursor.load();
    cursor.advance(work.x().scale_stride);
    asm volatile("cp.async.wait_group %0;" ::"n"(kMmaStages - 2) : "memory");
    __syncthreads();  // slice is there for all, and slice - 1 has been read by all
    start(slice + kMmaStages - 1);
    float part[64];
    multiply_stage(part, base + slice % kMmaStages * 2 * kOperandBytes);
    promote(sum, part, scales);
  }
}

template <class Work, class Epilogue>
__device__ __forceinline__ void w8a8_run_mma(Work& work, Epilogue& epilogue) {
  extern __shared__ char w8a8_shared[];
  const uint32 base = (shared_address(w8a8_shared) + 127) & ~127u;
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  wait_for_previous();
  work.begin(1);
  for (Cursor at{int(blockIdx.x), 0}; at.item < work.items(); at = after<Work>(at, gridDim.x)) {
    const Tile tile = work.tile(at, 0);
    float sum[64];
    accumulate_tile(sum, work, tile, base, row);
    epilogue.take(tile, at.pass, sum, row);
  }
}
