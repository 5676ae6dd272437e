// linear by VDPBF16PS: products of BF16 pairs, added in FP32.
//
// How E4M3 codes become BF16 numbers is in fp8_pairs.h, the loop over one token's rows in
// token_fp8.h; several tokens take the loops of generic/linear.h.
#include "src/kernels/cpu/avx512/fp8_pairs.h"
#include "src/kernels/cpu/avx512/lanes.h"
#include "src/kernels/cpu/avx512/token_fp8.h"
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

void linear_fp8(const LinearJob& job) {
  if (!multiplies_one_token(job)) {
    linear_rows<Lanes, Bf16Engine, ReadFp8Table>(job, _mm512_setzero_si512());
  } else if (job.normal_tiles != nullptr) {
    multiply_one_token<true>(job);
  } else {
    multiply_one_token<false>(job);
  }
}

void pack_bf16_dealt(const float* x, int64_t k, uint16_t* out, int64_t padded) {
  const auto bits = [&](int64_t at) {
    const int64_t left = k - at;
    return Lanes::bf16_bits(left >= 16 ? Lanes::load(x + at)
                            : left > 0 ? Lanes::load_first(x + at, left)
                                       : Lanes::zero());
  };
  const auto pair = [&](int64_t at) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(bits(at)), bits(at + 16), 1);
  };
  const __m512i order = _mm512_setr_epi64(
      0x0006000400020000, 0x000e000c000a0008, 0x0016001400120010, 0x001e001c001a0018,
      0x0026002400220020, 0x002e002c002a0028, 0x0036003400320030, 0x003e003c003a0038);
  const __m512i next = _mm512_add_epi16(order, _mm512_set1_epi16(1));
  for (int64_t at = 0; at < padded; at += 64) {
    const __m512i first = pair(at), second = pair(at + 32);
    _mm512_storeu_si512(out + at, _mm512_permutex2var_epi16(first, order, second));
    _mm512_storeu_si512(out + at + 32, _mm512_permutex2var_epi16(first, next, second));
  }
}

// BF16 weights are read in place however many tokens there are: nothing to widen.
void linear_bf16(const LinearJob& job) {
  linear_direct<Lanes, Bf16Engine, ReadBf16Pairs>(job);
}

}  // namespace

void fill_linear_avx512_bf16(Kernels& table) {
  table.linear[static_cast<int>(Engine::kBf16)][kWeightBf16] = linear_bf16;
  table.linear[static_cast<int>(Engine::kBf16Dealt)][kWeightFp8] = linear_fp8;
  table.pack_bf16_dealt = pack_bf16_dealt;
  table.has_bf16_products = true;
}

}  // namespace moray::cpu
