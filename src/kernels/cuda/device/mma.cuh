// Warp-wide matrix products (mma.sync) that every architecture from sm_89 on has.
//
// D[16,8] += A[16,K] B[K,8], FP32 accumulators. With g = lane / 4 and t = lane % 4 a lane holds
//   A  {rows g, g+8} x {k of its own}, B {k of its own} x column g, D {rows g, g+8} x {2t, 2t+1}.
// A lane's "own" k are 2t, 2t+1, 2t+8, 2t+9 for K = 16. The sum over k is free to be permuted as
// long as A and B agree, which lets a lane load 16 neighbouring bytes of a row at once.
#pragma once

#include "number.cuh"

// A: a0 = row g, k 2t..; a1 = row g+8; a2 = row g, k 2t+8..; a3 = row g+8, k 2t+8... B: b0, b1.
__device__ __forceinline__ void mma_f16(float (&d)[4], uint32 a0, uint32 a1, uint32 a2, uint32 a3,
                                        uint32 b0, uint32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_bf16(float (&d)[4], uint32 a0, uint32 a1, uint32 a2, uint32 a3,
                                         uint32 b0, uint32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
