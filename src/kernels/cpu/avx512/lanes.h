// Sixteen FP32 lanes: the vocabulary the loops of generic/ are written in, for AVX-512 F, BW, VL,
// DQ.
//
// Invariant: the type is local to each source file (unnamed namespace), so every template made of
// it is local too and no AVX-512 copy of a shared inline function can reach a narrower machine.
// sum_rows() adds lanes in one fixed tree (i and i+8, i+4, i+2, i+1) wherever a vector stands.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace moray::cpu {
namespace {

struct Lanes {
  using F = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kTileTokens = 4;   // linear: tokens a register tile of 4 rows
  static constexpr int kTileColumns = 4;  // vectors of columns a register tile of 4 rows
  static constexpr int kPairColumns = 8;  // vectors of columns a register tile of 2 rows

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float value) { return _mm512_set1_ps(value); }
  static F load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, F value) { _mm512_storeu_ps(to, value); }
  static __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
  // The first `count` < 16 elements; lanes beyond are zero, memory beyond is not touched.
  static F load_first(const float* from, int64_t count) {
    return _mm512_maskz_loadu_ps(first(count), from);
  }
  static void store_first(float* to, F value, int64_t count) {
    _mm512_mask_storeu_ps(to, first(count), value);
  }
  static F keep_first(F value, int64_t count) { return _mm512_maskz_mov_ps(first(count), value); }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }    // a * b + c
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
  // With a NaN on either side these give the second operand, as the instruction does.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static F negate(F a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  static F round_to_integer(F a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F where_greater(F a, F b, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), no, yes);
  }
  static F times_power_of_two(F a, F n) { return _mm512_scalef_ps(a, n); }

  // BF16 bits of 16 values, nearest even, NaN kept quiet; in integer arithmetic, because
  // VCVTNEPS2BF16 flushes denormals.
  static __m256i bf16_bits(F value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
  }
  static F from_bf16_bits(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static F round_bf16(F value) { return from_bf16_bits(bf16_bits(value)); }
  static void store_bf16(uint16_t* to, F value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bf16_bits(value));
  }
  static void store_bf16_first(uint16_t* to, F value, int64_t count) {
    _mm256_mask_storeu_epi16(to, first(count), bf16_bits(value));
  }
  // Values `at`.. of a dealt row (see Engine); `at` is a multiple of 16, lanes without a value
  // zero.
  static void store_bf16_dealt(uint16_t* row, int64_t at, F value) {
    const __m256i order = _mm256_setr_epi16(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i dealt = _mm256_permutexvar_epi16(order, bf16_bits(value));
    uint16_t* const to = row + at / 64 * 64 + at % 64 / 2;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(dealt));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 32), _mm256_extracti128_si256(dealt, 1));
  }
  static F load_bf16(const void* from) {
    return from_bf16_bits(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  static F load_f16(const void* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }

  // 32 E4M3 codes as values / 256: sign and the seven magnitude bits, moved into FP16 position, are
  // the same number with a bias of 15 instead of 7 (subnormals included). NaN codes come out as
  // 480 / 256; `magnitudes` collects the largest code, so that has_nan_code() can tell.
  using Codes = __m256i;
  static Codes no_codes() { return _mm256_setzero_si256(); }
  static void load_fp8(const void* from, F& a, F& b, Codes& magnitudes) {
    const __m256i codes = _mm256_loadu_si256(static_cast<const __m256i*>(from));
    magnitudes = _mm256_max_epu8(magnitudes, _mm256_and_si256(codes, _mm256_set1_epi8(0x7f)));
    const __m512i high = _mm512_slli_epi16(_mm512_cvtepu8_epi16(codes), 8);
    const __m512i half =
        _mm512_and_si512(_mm512_srai_epi16(high, 1), _mm512_set1_epi16(int16_t(0xbfff)));
    a = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
    b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
  }
  static bool has_nan_code(Codes magnitudes) {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(magnitudes, _mm256_set1_epi8(0x7f))) != 0;
  }

  static F add_halves(F a, F b) {  // 128-bit parts a0+a2, a1+a3, b0+b2, b1+b3
    return add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  static F add_parts(F ab, F cd) {  // then a, b, c, d, each four lanes in its 128-bit part
    return add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  }
  // out[i] = the sum of v[i]'s lanes, i < 4.
  static void sum_rows4(const F (&v)[4], float* out) {
    F s = add_parts(add_halves(v[0], v[1]), add_halves(v[2], v[3]));
    s = add(s, _mm512_permute_ps(s, 0x4e));
    s = add(s, _mm512_permute_ps(s, 0xb1));
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, s)));
  }
  // The first eight lanes: sums of eight vectors' lanes.
  static F sum_rows8(const F (&v)[8]) {
    const F a = add_parts(add_halves(v[0], v[1]), add_halves(v[2], v[3]));
    const F b = add_parts(add_halves(v[4], v[5]), add_halves(v[6], v[7]));
    const F ab = add(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    const F s = add(_mm512_shuffle_ps(ab, ab, 0x88), _mm512_shuffle_ps(ab, ab, 0xdd));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(order, s);
  }
  // A tile v[row][token] of 4 rows and kTileTokens tokens: out[token * 4 + row] = sum of its lanes.
  static void sum_tile(const F (&v)[4][kTileTokens], float* out) {
    F s[4];
    for (int row = 0; row < 4; ++row) {
      s[row] = add_parts(add_halves(v[row][0], v[row][1]), add_halves(v[row][2], v[row][3]));
    }
    const F s01 = add(_mm512_shuffle_ps(s[0], s[1], 0x44), _mm512_shuffle_ps(s[0], s[1], 0xee));
    const F s23 = add(_mm512_shuffle_ps(s[2], s[3], 0x44), _mm512_shuffle_ps(s[2], s[3], 0xee));
    store(out, add(_mm512_shuffle_ps(s01, s23, 0x88), _mm512_shuffle_ps(s01, s23, 0xdd)));
  }
  static float sum(F v) {
    const F parts[4] = {v, zero(), zero(), zero()};
    float out[4];
    sum_rows4(parts, out);
    return out[0];
  }
  // w[j] = element j of 16 consecutive groups of four floats.
  static void load_groups_of_four(const float* from, F (&w)[4]) {
    const F r0 = load(from), r1 = load(from + 16), r2 = load(from + 32), r3 = load(from + 48);
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(r0, r1));
    const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(r0, r1));
    const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(r2, r3));
    const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(r2, r3));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const auto sorted = [order](__m512d v) {
      return _mm512_permutexvar_ps(order, _mm512_castpd_ps(v));
    };
    w[0] = sorted(_mm512_unpacklo_pd(low01, low23));
    w[1] = sorted(_mm512_unpackhi_pd(low01, low23));
    w[2] = sorted(_mm512_unpacklo_pd(high01, high23));
    w[3] = sorted(_mm512_unpackhi_pd(high01, high23));
  }
  static float largest(F v) { return _mm512_reduce_max_ps(v); }
};

}  // namespace
}  // namespace moray::cpu
