// Elements of the KV cache: BF16, or E4M3 codes times a scale per position and head (kKvFp8).
//
// A piece is eight neighbouring elements of a row, which widen to four words of BF16 pairs,
// exactly: an E4M3 code has four significant bits. The scale of a row is its largest magnitude /
// 448, FP32.
#pragma once

#include "constants.cuh"
#include "head.cuh"
#include "number.cuh"

namespace moray::cuda {

template <bool IsFp8>
struct CacheFormat {
  using Element = uint16;
  using Piece = Pack16;
};
template <>
struct CacheFormat<true> {
  using Element = uint8;
  using Piece = uint2;
};
using CacheElement = CacheFormat<kKvFp8>::Element;
using CachePiece = CacheFormat<kKvFp8>::Piece;

// Read once: not kept in the first-level cache.
__device__ __forceinline__ void load_once(Pack16& piece, const void* at) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(piece.word[0]), "=r"(piece.word[1]), "=r"(piece.word[2]), "=r"(piece.word[3])
               : "l"(at));
}
__device__ __forceinline__ void load_once(uint2& piece, const void* at) {
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
               : "=r"(piece.x), "=r"(piece.y)
               : "l"(at));
}

__device__ __forceinline__ uint32 e4m3x2_bf16x2(uint32 codes) {
  const uint32 pair = e4m3x2_f16x2(static_cast<uint16>(codes));
  return float_bf16x2(f16_float(static_cast<uint16>(pair)),
                      f16_float(static_cast<uint16>(pair >> 16)));
}
__device__ __forceinline__ Pack16 widen(const Pack16& piece) {
  return piece;
}
__device__ __forceinline__ Pack16 widen(const uint2& piece) {
  return {{e4m3x2_bf16x2(piece.x), e4m3x2_bf16x2(piece.x >> 16), e4m3x2_bf16x2(piece.y),
           e4m3x2_bf16x2(piece.y >> 16)}};
}

// The cache's elements of a row that a warp holds as in head.cuh, and the row's scale (1 for BF16).
__device__ __forceinline__ float to_cache(const float (&value)[kHeadLaneDims],
                                          CacheElement (&element)[kHeadLaneDims]) {
  if constexpr (kKvFp8) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < kHeadLaneDims; ++i) most = fmaxf(most, fabsf(round_bf16(value[i])));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
    }
    const float inverse = most > 0 ? 448.0f / most : 0.0f;
#pragma unroll
    for (int i = 0; i < kHeadLaneDims; ++i) {
      element[i] = static_cast<CacheElement>(float_e4m3x2(round_bf16(value[i]) * inverse, 0));
    }
    return most / 448.0f;
  } else {
#pragma unroll
    for (int i = 0; i < kHeadLaneDims; ++i) {
      element[i] = static_cast<CacheElement>(float_bf16(value[i]));
    }
    return 1;
  }
}

}  // namespace moray::cuda
