// Eight FP32 lanes: the vocabulary the loops of generic/ are written in, for AVX2, FMA and F16C.
//
// Invariant: as in avx512/lanes.h, the type is local to each source file; sum_rows() adds lanes in
// one fixed tree (i and i+4, i+2, i+1) wherever a vector stands.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace moray::cpu {
namespace {

struct Lanes {
  using F = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kTileTokens = 2;   // linear: tokens a register tile of 4 rows
  static constexpr int kTileColumns = 2;  // vectors of columns a register tile of 4 rows
  static constexpr int kPairColumns = 4;  // vectors of columns a register tile of 2 rows

  static F zero() { return _mm256_setzero_ps(); }
  static F set(float value) { return _mm256_set1_ps(value); }
  static F load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, F value) { _mm256_storeu_ps(to, value); }
  static __m256i first(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  // The first `count` < 8 elements; lanes beyond are zero, memory beyond is not touched.
  static F load_first(const float* from, int64_t count) {
    return _mm256_maskload_ps(from, first(count));
  }
  static void store_first(float* to, F value, int64_t count) {
    _mm256_maskstore_ps(to, first(count), value);
  }
  static F keep_first(F value, int64_t count) {
    return _mm256_and_ps(value, _mm256_castsi256_ps(first(count)));
  }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }    // a * b + c
  static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
  // With a NaN on either side these give the second operand, as the instruction does.
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static F negate(F a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  static F round_to_integer(F a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F where_greater(F a, F b, F yes, F no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
  }
  // a * 2^n for integral |n| <= 252, in two factors so that denormal results are reached exactly.
  static F times_power_of_two(F a, F n) {
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    const auto power = [](__m256i exponent) {
      return _mm256_castsi256_ps(
          _mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23));
    };
    return mul(mul(a, power(half)), power(_mm256_sub_epi32(whole, half)));
  }

  // BF16 bits of 8 values, nearest even, NaN kept quiet.
  static __m128i bf16_bits(F value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  }
  static F from_bf16_bits(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static F round_bf16(F value) { return from_bf16_bits(bf16_bits(value)); }
  static void store_bf16(uint16_t* to, F value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bf16_bits(value));
  }
  static void store_bf16_first(uint16_t* to, F value, int64_t count) {
    alignas(16) uint16_t bits[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(bits), bf16_bits(value));
    for (int64_t i = 0; i < count; ++i) to[i] = bits[i];
  }
  static F load_bf16(const void* from) {
    return from_bf16_bits(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  static F load_f16(const void* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }

  // 16 E4M3 codes as values / 256; see avx512/lanes.h.
  using Codes = __m128i;
  static Codes no_codes() { return _mm_setzero_si128(); }
  static void load_fp8(const void* from, F& a, F& b, Codes& magnitudes) {
    const __m128i codes = _mm_loadu_si128(static_cast<const __m128i*>(from));
    magnitudes = _mm_max_epu8(magnitudes, _mm_and_si128(codes, _mm_set1_epi8(0x7f)));
    const __m256i high = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8);
    const __m256i half =
        _mm256_and_si256(_mm256_srai_epi16(high, 1), _mm256_set1_epi16(int16_t(0xbfff)));
    a = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
    b = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
  }
  static bool has_nan_code(Codes magnitudes) {
    return _mm_movemask_epi8(_mm_cmpeq_epi8(magnitudes, _mm_set1_epi8(0x7f))) != 0;
  }

  static F add_halves(F a, F b) {  // 128-bit parts a0+a1, b0+b1
    return add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }
  static F add_pairs(F ab, F cd) {  // lanes a a c c | b b d d
    return add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  }
  // out[i] = the sum of v[i]'s lanes, i < 4.
  static void sum_rows4(const F (&v)[4], float* out) {
    F s = add_pairs(add_halves(v[0], v[1]), add_halves(v[2], v[3]));
    s = add(s, _mm256_permute_ps(s, 0xb1));
    // a a c c | b b d d -> a b c d
    const __m128 low = _mm256_castps256_ps128(s), high = _mm256_extractf128_ps(s, 1);
    _mm_storeu_ps(out, _mm_blend_ps(low, high, 0xa));
  }
  // A tile v[row][token] of 4 rows and kTileTokens tokens: out[token * 4 + row] = sum of its lanes.
  static void sum_tile(const F (&v)[4][kTileTokens], float* out) {
    const F s01 = add_pairs(add_halves(v[0][0], v[0][1]), add_halves(v[1][0], v[1][1]));
    const F s23 = add_pairs(add_halves(v[2][0], v[2][1]), add_halves(v[3][0], v[3][1]));
    store(out, add(_mm256_shuffle_ps(s01, s23, 0x88), _mm256_shuffle_ps(s01, s23, 0xdd)));
  }
  static float sum(F v) {
    const F parts[4] = {v, zero(), zero(), zero()};
    float out[4];
    sum_rows4(parts, out);
    return out[0];
  }
  // w[j] = element j of 8 consecutive groups of four floats.
  static void load_groups_of_four(const float* from, F (&w)[4]) {
    const F r0 = load(from), r1 = load(from + 8), r2 = load(from + 16), r3 = load(from + 24);
    const __m256d low01 = _mm256_castps_pd(_mm256_unpacklo_ps(r0, r1));
    const __m256d high01 = _mm256_castps_pd(_mm256_unpackhi_ps(r0, r1));
    const __m256d low23 = _mm256_castps_pd(_mm256_unpacklo_ps(r2, r3));
    const __m256d high23 = _mm256_castps_pd(_mm256_unpackhi_ps(r2, r3));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const auto sorted = [order](__m256d v) {
      return _mm256_permutevar8x32_ps(_mm256_castpd_ps(v), order);
    };
    w[0] = sorted(_mm256_unpacklo_pd(low01, low23));
    w[1] = sorted(_mm256_unpackhi_pd(low01, low23));
    w[2] = sorted(_mm256_unpacklo_pd(high01, high23));
    w[3] = sorted(_mm256_unpackhi_pd(high01, high23));
  }
  static float largest(F v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace
}  // namespace moray::cpu
