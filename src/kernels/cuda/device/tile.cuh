// Tiles of BF16 rows in shared memory: asynchronous copies in, fragments for mma.cuh out.
//
// A row of `dims` elements is dims / 8 pieces of 16 bytes; piece p of row r lies at place p ^ (r %
// 8) of its row (fewer than 8 pieces: modulo their number), so that the eight rows of a fragment
// load fall on different banks. Available from sm_80 on.
#pragma once

#include "barrier.cuh"
#include "number.cuh"

// 16 bytes from global to shared memory, zeros if not `valid` (then nothing is read).
__device__ __forceinline__ void copy_async(uint32 to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copies_end_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int Pending>  // all but the last `Pending` groups of this thread have landed
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Byte offset of 16-byte piece `piece` of row `row`.
template <int Dims>
__device__ __forceinline__ uint32 tile_offset(int row, int piece) {
  constexpr int kPieces = Dims / 8, kMask = kPieces < 8 ? kPieces - 1 : 7;
  static_assert((kPieces & (kPieces - 1)) == 0);
  return static_cast<uint32>((row * kPieces + (piece ^ (row & kMask))) * 16);
}

// Four 8x8 blocks; lane l gives the address of row l % 8 of block l / 8. Register b of lane (g, t)
// holds elements 2 t, 2 t + 1 of row g of block b; transposed: of column g.
__device__ __forceinline__ void load_blocks(uint32 (&block)[4], uint32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(block[0]), "=r"(block[1]), "=r"(block[2]), "=r"(block[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_blocks_transposed(uint32 (&block)[4], uint32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(block[0]), "=r"(block[1]), "=r"(block[2]), "=r"(block[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void store_shared(uint32 address, uint32 word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
__device__ __forceinline__ Pack16 load_shared(uint32 address) {
  Pack16 p;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(p.word[0]), "=r"(p.word[1]), "=r"(p.word[2]), "=r"(p.word[3])
               : "r"(address)
               : "memory");
  return p;
}
