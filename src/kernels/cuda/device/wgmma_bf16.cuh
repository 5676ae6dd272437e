// BF16 products of a warpgroup (wgmma, sm_90a), for attention: scores from two tiles in shared
// memory, sums from weights in registers and values in shared memory.
//
// Tiles are rows of 64 elements (128 bytes) in panels, 16-byte piece c of row r at
// r * 128 + (c ^ (r % 8)) * 16 from a 1024-byte aligned start. With w the warp of the warpgroup,
// g = lane / 4 and t = lane % 4 a lane holds d[4 j + 2 h + e] = D[16 w + g + 8 h, 8 j + 2 t + e],
// and of a register operand A[64, 16] the same fragments as in mma.cuh. Products run
// asynchronously: wgmma_fence() before the first of a group, wgmma_end() after the last,
// wgmma_wait_pending<n>() until all but the last n groups are done; until then neither the
// registers nor the tiles may change.
#pragma once

#include "wgmma.cuh"

#if __CUDA_ARCH__ == 900

// Values as the second operand: rows are the summed dimension, columns (64 a panel) the result's.
// Panels stand `panel_bytes` apart; moving 16 rows on is + 128.
__device__ __forceinline__ uint64 wgmma_columns(uint32 address, uint32 panel_bytes) {
  constexpr uint64 kSwizzle128 = uint64(1) << 62;
  constexpr uint64 kGroupBytes = uint64(1024 >> 4) << 32;  // from 8 rows to the next 8
  return kSwizzle128 | kGroupBytes | uint64(panel_bytes >> 4) << 16 |
         uint64((address & 0x3ffff) >> 4);
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <int Pending>
__device__ __forceinline__ void wgmma_wait_pending() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Keeps the compiler from moving accesses of registers across a fence or a wait.
template <int Count>
__device__ __forceinline__ void wgmma_pin(float (&registers)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int Count>
__device__ __forceinline__ void wgmma_pin(uint32 (&registers)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}
// Makes this thread's writes to shared memory, cp.async included, visible to the products.
__device__ __forceinline__ void wgmma_see_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// D[64, 64] (+)= A[64, 16] B[64, 16]^T; operands as wgmma_rows describes, 16 columns on is + 2.
__device__ __forceinline__ void wgmma_bf16_rows(float (&d)[32], uint64 a, uint64 b,
                                                bool accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, accumulate, 1, 1, 0, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(int(accumulate)));
}

// D[64, 128] += A[64, 16] B[16, 128]; A in registers, B as wgmma_columns describes.
__device__ __forceinline__ void wgmma_bf16_columns(float (&d)[64], const uint32 (&a)[4], uint64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
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
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif  // __CUDA_ARCH__ == 900
