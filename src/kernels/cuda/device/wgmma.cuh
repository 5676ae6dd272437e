// Matrix products of a warpgroup (wgmma, sm_90a): both operands read from shared memory.
//
// D[64, 128] (+)= A[64, 32] B[32, 128], E4M3 operands, FP32 accumulators. A is 64 rows of k, B is
// 128 rows of k (K-major both), each row 128 bytes, in the 128-byte swizzle of bulk copies: the
// 16-byte piece c of row r lies at r * 128 + (c ^ (r % 8)) * 16 from a 1024-byte aligned start.
// With w the warp of the warpgroup, g = lane / 4 and t = lane % 4, a lane holds
//   d[4 j + 2 h + e] = D[16 w + g + 8 h, 8 j + 2 t + e],  j in 0..15, h and e in 0..1.
// The products run asynchronously: wgmma_begin() before the first of a group, wgmma_end() after the
// last, wgmma_wait() before D is read or shared memory reused.
#pragma once

#include "number.cuh"

#if __CUDA_ARCH__ == 900

// Describes K-major rows of 128 bytes at a shared address: groups of 8 rows stand 1024 bytes apart.
// Moving 32 columns on is + 2 (the address counts 16 bytes).
__device__ __forceinline__ uint64 wgmma_rows(uint32 address) {
  constexpr uint64 kSwizzle128 = uint64(1) << 62;
  constexpr uint64 kGroupBytes = uint64(1024 >> 4) << 32;
  constexpr uint64 kUnused = uint64(1) << 16;  // leading offset, without meaning when swizzled
  return kSwizzle128 | kGroupBytes | kUnused | uint64((address & 0x3ffff) >> 4);
}

// Orders earlier accesses of the accumulators' registers before the products.
__device__ __forceinline__ void wgmma_begin(float (&d)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_end() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kRunning>
__device__ __forceinline__ void wgmma_wait(float (&d)[64]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kRunning) : "memory");
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// accumulate false: D = A B.
__device__ __forceinline__ void wgmma_e4m3(float (&d)[64], uint64 a, uint64 b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, accumulate, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "l"(a), "l"(b), "r"(int(accumulate)));
}

#endif  // __CUDA_ARCH__ == 900
