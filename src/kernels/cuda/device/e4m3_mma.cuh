// Warp-wide E4M3 products (mma.sync m16n8k32): plain on sm_89, block-scaled on sm_120a.
//
// D[16,8] = A[16,32] B[32,8] + D, FP32. With g = lane / 4, t = lane % 4: a0 = A[g, 4t..], a1 = A[g
// + 8, 4t..], a2 = A[g, 16 + 4t..], a3 = A[g + 8, 16 + 4t..], b0 = B[4t.., g], b1 = B[16 + 4t..,
// g], four codes a word; d = D[g, 2t..], D[g + 8, 2t..]. That is what ldmatrix delivers from rows
// of k. GeForce cards of sm_120 run the plain form at half rate with FP32 accumulators, the
// block-scaled form at full rate; its scales are all one here (E8M0 code 127), so both compute the
// same.
#pragma once

#include "number.cuh"

__device__ __forceinline__ void mma_e4m3(float& d0, float& d1, float& d2, float& d3,
                                         const uint32 (&a)[4], uint32 b0, uint32 b1) {
#if __CUDA_ARCH__ >= 1200
  constexpr uint32 kOnes = 0x7f7f7f7f;
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32"
      ".ue8m0 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, %10, {%11,%11}, %10, {%11,%11};"
      : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(kOnes), "n"(0));
#else
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Four 8 x 16-byte matrices; the address of row r of matrix m comes from lane 8 m + r.
__device__ __forceinline__ void load_matrices(uint32 (&word)[4], uint32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(address)
               : "memory");
}
