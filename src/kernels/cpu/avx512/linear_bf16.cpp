// linear by VDPBF16PS: products of BF16 pairs, added in FP32.
//
// E4M3 codes become BF16 through a table of 128 values in registers (VBMI byte permutes), because
// the instruction reads denormals as zero: E4M3's subnormals are normal BF16 numbers, a shifted
// code would not be. Method after the AVX-512 FP8 kernels of KTransformers; ours keeps the natural
// order of weights, so that FP8 and BF16 matrices share one packed input. Splitting codes of even
// and odd index by shifts instead, with the input packed to match, saves three shuffles and lost:
// on Zen 5 unpacks are cheaper than shifts (nano projection 8.9 us against 9.6).
#include "src/kernels/cpu/avx512/lanes.h"
#include "src/kernels/cpu/generic/linear.h"
#include "src/kernels/cpu/tables.h"

namespace moray::cpu {

namespace {

struct Bf16Engine {
  using X = uint16_t;
  using F = __m512;
  using Wide = __m512i;
  static constexpr int kStep = 32;
  static Wide load(const uint16_t* x) { return _mm512_loadu_si512(x); }
  static F mad(F sum, Wide weights, Wide x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)x);
  }
  static void store_wide(uint16_t* to, Wide weights) { _mm512_storeu_si512(to, weights); }
};

struct ReadBf16Pairs {
  static constexpr int kBytes = 2;
  static constexpr float kScale = 1;
  static constexpr bool kPrefetch = true;
  void load(const char* from, __m512i& a, __m512i& b) {
    a = _mm512_loadu_si512(from);
    b = _mm512_loadu_si512(from + 64);
  }
  bool saw_nan() const { return false; }
};

// Low and high bytes of the BF16 number of each non-negative E4M3 code.
struct Fp8Table {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];
};

constexpr Fp8Table make_fp8_table() {
  Fp8Table table{};
  for (unsigned code = 0; code < 128; ++code) {
    const unsigned exponent = code >> 3, mantissa = code & 7;
    unsigned bits = (exponent + 120) << 7 | mantissa << 4;
    if (exponent == 0) {  // mantissa * 2^-9, normalised
      unsigned leading = 0;
      while (mantissa >> (leading + 1)) ++leading;
      bits = mantissa == 0 ? 0 : (leading + 118) << 7 | (mantissa << (7 - leading) & 0x7f);
    }
    if (code == 127) bits = 0x7fc0;
    table.low[code] = static_cast<uint8_t>(bits);
    table.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  return table;
}

constexpr Fp8Table kFp8Table = make_fp8_table();

struct ReadFp8Pairs {
  static constexpr int kBytes = 1;
  static constexpr float kScale = 1;
  static constexpr bool kPrefetch = true;
  // 64 codes; the eight-byte groups are dealt so that the two unpacks restore natural order.
  void load(const char* from, __m512i& a, __m512i& b) {
    __m512i codes = _mm512_loadu_si512(from);
    // Keeps the codes in a register: GCC would rather load them once for each use, and rows that do
    // not start on a cache line make every load two.
    asm("" : "+v"(codes));
    codes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), codes);
    const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(kFp8Table.low), codes,
                                                 _mm512_load_si512(kFp8Table.low + 64));
    const __m512i magnitude = _mm512_permutex2var_epi8(_mm512_load_si512(kFp8Table.high), codes,
                                                       _mm512_load_si512(kFp8Table.high + 64));
    constexpr int kOrAnd = 0xf8;  // x | (y & z)
    const __m512i high =
        _mm512_ternarylogic_epi64(magnitude, codes, _mm512_set1_epi8(char(0x80)), kOrAnd);
    a = _mm512_unpacklo_epi8(low, high);
    b = _mm512_unpackhi_epi8(low, high);
  }
  bool saw_nan() const { return false; }  // the table gives a NaN, the products carry it
};

void linear_fp8(const LinearJob& job) {
  linear_rows<Lanes, Bf16Engine, ReadFp8Pairs>(job, _mm512_setzero_si512());
}

// BF16 weights are read in place however many tokens there are: nothing to widen.
void linear_bf16(const LinearJob& job) {
  linear_direct<Lanes, Bf16Engine, ReadBf16Pairs>(job);
}

}  // namespace

void fill_linear_avx512_bf16(Kernels& table) {
  auto& column = table.linear[static_cast<int>(Engine::kBf16)];
  column[kWeightBf16] = linear_bf16;
  column[kWeightFp8] = linear_fp8;
  table.has_bf16_products = true;
}

}  // namespace moray::cpu
