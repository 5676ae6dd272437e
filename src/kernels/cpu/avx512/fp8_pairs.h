// E4M3 codes as BF16 numbers 1/256 as large, a pair of codes at a time: the code of an even place
// is the lower half of its 16 bits, that of an odd place the upper half. Input rows are dealt to
// match (see Engine).
//
// The products read denormals as zero, and E4M3's subnormals are normal BF16 numbers: a shifted
// code would not do for them. So any codes go through a table of 128 values in registers (VBMI byte
// permutes; method after the AVX-512 FP8 kernels of KTransformers), normal ones are shifted.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace moray::cpu {
namespace {

inline constexpr float kFp8Scale = 256;  // what the numbers must be multiplied with

// Low and high bytes of the BF16 number, 1/256 as large, of each non-negative E4M3 code.
struct Fp8Table {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];
};

constexpr Fp8Table make_fp8_table() {
  Fp8Table table{};
  for (unsigned code = 0; code < 128; ++code) {
    const unsigned exponent = code >> 3, mantissa = code & 7;
    unsigned bits = (exponent + 112) << 7 | mantissa << 4;
    if (exponent == 0) {  // mantissa * 2^-9 / 256, normalised
      unsigned leading = 0;
      while (mantissa >> (leading + 1)) ++leading;
      bits = mantissa == 0 ? 0 : (leading + 110) << 7 | (mantissa << (7 - leading) & 0x7f);
    }
    if (code == 127) bits = 0x7fc0;
    table.low[code] = static_cast<uint8_t>(bits);
    table.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  return table;
}

constexpr Fp8Table kFp8Table = make_fp8_table();

// 64 codes, those at even places in a, those at odd places in b. The codes are kept in a register:
// GCC would rather load them once for each use, and rows that do not start on a cache line make
// every load two.
inline __m512i load_codes(const char* from) {
  __m512i codes = _mm512_loadu_si512(from);
  asm("" : "+v"(codes));
  return codes;
}

// Any codes.
inline void load_by_table(const char* from, __m512i& a, __m512i& b) {
  const __m512i codes = load_codes(from);
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(kFp8Table.low), codes,
                                               _mm512_load_si512(kFp8Table.low + 64));
  const __m512i magnitude = _mm512_permutex2var_epi8(_mm512_load_si512(kFp8Table.high), codes,
                                                     _mm512_load_si512(kFp8Table.high + 64));
  constexpr int kOrAnd = 0xf8;  // x | (y & z)
  const __m512i high =
      _mm512_ternarylogic_epi64(magnitude, codes, _mm512_set1_epi8(char(0x80)), kOrAnd);
  constexpr int kChoose = 0xca;  // x ? y : z
  const __m512i lower_half = _mm512_set1_epi16(0x00ff);
  a = _mm512_ternarylogic_epi64(lower_half, low, _mm512_slli_epi16(high, 8), kChoose);
  b = _mm512_ternarylogic_epi64(lower_half, _mm512_srli_epi16(low, 8), high, kChoose);
}

// The reader of linear's loops.
struct ReadFp8Table {
  static constexpr int kBytes = 1;
  static constexpr float kScale = kFp8Scale;
  static constexpr bool kPrefetch = true;
  void load(const char* from, __m512i& a, __m512i& b) { load_by_table(from, a, b); }
  bool saw_nan() const { return false; }  // the table gives a NaN, the products carry it
};

// 16 bits each, a code in the upper half: sign, exponent and mantissa keep their order, the
// exponent gets 112. For codes of normal numbers only.
inline __m512i widen_normal(__m512i upper_halves) {
  constexpr int kAndOr = 0xea;  // (x & y) | z
  return _mm512_ternarylogic_epi64(_mm512_srai_epi16(upper_halves, 4),
                                   _mm512_set1_epi16(int16_t(0x87f0)), _mm512_set1_epi16(112 << 7),
                                   kAndOr);
}
inline void load_normal(const char* from, __m512i& a, __m512i& b) {
  const __m512i codes = load_codes(from);
  a = widen_normal(_mm512_slli_epi16(codes, 8));
  b = widen_normal(codes);
}

}  // namespace
}  // namespace moray::cpu
