// Products of the prefill of the gated delta net, transposed: sixteen columns of a value head by
// the 64 tokens of a chunk, a warp. Accumulators of one product are operands of the next without
// leaving the registers (device/mma.cuh).
#pragma once

#include "src/kernels/cuda/device/mma.cuh"
#include "src/kernels/cuda/device/tile.cuh"

using Block = float[4];     // sixteen columns by 8 of something: accumulators
using Operand = uint32[4];  // sixteen columns by 16: a left operand

// Accumulators of two neighbouring blocks as the left operand of a product over their 16 columns.
__device__ __forceinline__ void pack_blocks(const Block& first, const Block& second, Operand& out) {
  out[0] = float_f16x2(first[0], first[1]);
  out[1] = float_f16x2(first[2], first[3]);
  out[2] = float_f16x2(second[0], second[1]);
  out[3] = float_f16x2(second[2], second[3]);
}

template <int kBlocks>
__device__ __forceinline__ void scale_blocks(Block (&x)[kBlocks], float factor) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n][i] *= factor;
  }
}

// Scales the column of each token by its factor (in shared memory) and a common one.
template <int kBlocks>
__device__ __forceinline__ void scale_tokens(const float* factors, float common, int lane,
                                             Block (&x)[kBlocks]) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    const float2 factor = *reinterpret_cast<const float2*>(factors + n * 8 + lane % 4 * 2);
    x[n][0] *= factor.x * common;
    x[n][1] *= factor.y * common;
    x[n][2] *= factor.x * common;
    x[n][3] *= factor.y * common;
  }
}

// out = S^T X^T for a tile X [8 kBlocks, 16 kSteps] in shared memory.
template <int kSteps, int kBlocks>
__device__ __forceinline__ void multiply_rows(const Operand (&s)[kSteps], uint32 tile, int lane,
                                              Block (&out)[kBlocks]) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n][i] = 0.0f;
  }
  const int row = lane / 16 * 8 + lane % 8;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      uint32 x[4];
      load_blocks(x, tile + tile_offset<16 * kSteps>(n * 8 + row, 2 * k + lane / 8 % 2));
      mma_f16(out[n], s[k][0], s[k][1], s[k][2], s[k][3], x[0], x[1]);
      mma_f16(out[n + 1], s[k][0], s[k][1], s[k][2], s[k][3], x[2], x[3]);
    }
  }
}

// out += X^T M^T for a lower triangular tile M [16 kSteps, 16 kSteps].
template <int kSteps>
__device__ __forceinline__ void multiply_triangle(const Operand (&x)[kSteps], uint32 tile, int lane,
                                                  Block (&out)[2 * kSteps]) {
  const int row = lane / 16 * 8 + lane % 8;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int n = 2 * k; n < 2 * kSteps; n += 2) {
      uint32 m[4];
      load_blocks(m, tile + tile_offset<16 * kSteps>(n * 8 + row, 2 * k + lane / 8 % 2));
      mma_f16(out[n], x[k][0], x[k][1], x[k][2], x[k][3], m[0], m[1]);
      mma_f16(out[n + 1], x[k][0], x[k][1], x[k][2], x[k][3], m[2], m[3]);
    }
  }
}

// s += X^T K for a tile K [16 kSteps, 8 kBlocks].
template <int kSteps, int kBlocks>
__device__ __forceinline__ void add_products(const Operand (&x)[kSteps], uint32 tile, int lane,
                                             Block (&s)[kBlocks]) {
  const int row = lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      uint32 y[4];
      load_blocks_transposed(y, tile + tile_offset<8 * kBlocks>(k * 16 + row, n + lane / 16));
      mma_f16(s[n], x[k][0], x[k][1], x[k][2], x[k][3], y[0], y[1]);
      mma_f16(s[n + 1], x[k][0], x[k][1], x[k][2], x[k][3], y[2], y[3]);
    }
  }
}

// kBytes from global to shared memory by all threads of the block, both 16-byte aligned.
template <int kBytes, int kThreads>
__device__ __forceinline__ void copy_straight(void* to, const void* from) {
  const uint32 base = shared_address(to) + threadIdx.x * 16;
  const char* const source = static_cast<const char*>(from) + threadIdx.x * 16;
#pragma unroll
  for (int n = 0; n < kBytes; n += kThreads * 16) {
    if (n + kThreads * 16 <= kBytes || n + threadIdx.x * 16 < kBytes) {
      copy_async(base + n, source + n, true);
    }
  }
}
