// The arithmetic of a draw, the same bits on the host and on a device: exp() of numbers <= 0, a
// counter-based random number, and the choice among ranked candidates.
//
// The C library picks its exp by CPU and a compiler may fuse a product and a sum; either changes
// last bits, and a draw that falls on such a bit would give another text. Here are only IEEE
// additions, products and a power of two in a fixed order: the host's build forbids contraction, a
// device is told each rounding. Included by both compilers, so only plain types.
#pragma once

namespace moray::cuda {

#ifdef __CUDACC_RTC__
#define MORAY_ON_BOTH __device__ __forceinline__
MORAY_ON_BOTH double rounded_product(double a, double b) {
  return __dmul_rn(a, b);
}
MORAY_ON_BOTH double rounded_sum(double a, double b) {
  return __dadd_rn(a, b);
}
MORAY_ON_BOTH double from_bits(unsigned long long bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}
#else
#define MORAY_ON_BOTH inline
MORAY_ON_BOTH double rounded_product(double a, double b) {
  return a * b;
}
MORAY_ON_BOTH double rounded_sum(double a, double b) {
  return a + b;
}
MORAY_ON_BOTH double from_bits(unsigned long long bits) {
  return __builtin_bit_cast(double, bits);
}
#endif

// 1/0!, 1/1!, ..., 1/13!.
inline constexpr int kExponentialTerms = 14;
struct InverseFactorials {
  double of[kExponentialTerms];
};
constexpr InverseFactorials inverse_factorials() {
  InverseFactorials table{};
  double factorial = 1;
  for (int n = 0; n < kExponentialTerms; ++n) {
    if (n > 1) factorial *= n;
    table.of[n] = 1 / factorial;
  }
  return table;
}

// e^x for x <= 0; relative error below 1e-15, and 0 for x <= -707 (results near the subnormals).
// Reduction x = k ln2 + r with |r| <= ln2/2, then Taylor to r^13 (the next term is < 5e-18).
MORAY_ON_BOTH double exp_nonpositive(double x) {
  if (!(x > -707.0)) return 0.0;
  constexpr InverseFactorials kInverse = inverse_factorials();
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 0x1.62e42fefa38p-1;  // 41 bits, so that k * high is exact
  constexpr double kLn2Low = 0x1.ef35793c7673p-45;
  const auto k = static_cast<long long>(rounded_sum(rounded_product(x, kLog2E), -0.5));
  const double whole = static_cast<double>(k);
  const double r = rounded_sum(rounded_sum(x, -rounded_product(whole, kLn2High)),
                               -rounded_product(whole, kLn2Low));
  double sum = kInverse.of[kExponentialTerms - 1];
  for (int n = kExponentialTerms - 2; n >= 0; --n) {
    sum = rounded_sum(rounded_product(sum, r), kInverse.of[n]);
  }
  return rounded_product(sum, from_bits(static_cast<unsigned long long>(k + 1023) << 52));
}

// Ten rounds of Philox4x32 over a 128-bit counter and a 64-bit key: Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3" (2011). There is no state.
struct PhiloxCounter {
  unsigned word[4];
};
MORAY_ON_BOTH PhiloxCounter philox4x32(PhiloxCounter counter, unsigned key0, unsigned key1) {
  constexpr int kRounds = 10;
  constexpr unsigned long long kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr unsigned kKeyStep0 = 0x9E3779B9u;  // fractional bits of the golden ratio
  constexpr unsigned kKeyStep1 = 0xBB67AE85u;  // fractional bits of sqrt(3)
  for (int round = 0; round < kRounds; ++round) {
    const unsigned long long product0 = kMultiplier0 * counter.word[0];
    const unsigned long long product1 = kMultiplier1 * counter.word[2];
    counter = {{static_cast<unsigned>(product1 >> 32) ^ counter.word[1] ^ key0,
                static_cast<unsigned>(product1),
                static_cast<unsigned>(product0 >> 32) ^ counter.word[3] ^ key1,
                static_cast<unsigned>(product0)}};
    key0 += kKeyStep0;
    key1 += kKeyStep1;
  }
  return counter;
}

// A double in [0, 1) with 53 random bits, a function of the user's seed and a token's position.
MORAY_ON_BOTH double uniform_at(unsigned long long seed, unsigned long long position) {
  const PhiloxCounter words = philox4x32(
      {{static_cast<unsigned>(position), static_cast<unsigned>(position >> 32), 0, 0}},
      static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32));
  const unsigned long long bits =
      (static_cast<unsigned long long>(words.word[0]) << 32 | words.word[1]) >> 11;
  return rounded_product(static_cast<double>(bits), 0x1.0p-53);
}

// What a draw needs of the sampling options (moray/engine.h), in device memory for the graph.
struct DrawSettings {
  double temperature, top_p, min_p;
  unsigned long long seed;
  int top_k;
};

// Of `count` >= 1 candidates, the top_k by (larger logit, lower id) in that order: the index of the
// one drawn for `position`. min-p, then top-p, then inverse distribution: the steps 6 to 8 of
// src/generate/sampler.h. weights[count]: exp_nonpositive((logit - logits[0]) / temperature).
MORAY_ON_BOTH int draw_ranked(const double* weights, int count, const DrawSettings& settings,
                              unsigned long long position) {
  const auto survives = [&](int i) { return settings.min_p == 0 || weights[i] >= settings.min_p; };
  double total = 0;
  for (int i = 0; i < count; ++i) {
    if (survives(i)) total = rounded_sum(total, weights[i]);
  }
  int end = count;  // of the nucleus
  if (settings.top_p != 1) {
    const double wanted = rounded_product(settings.top_p, total);
    double held = 0;
    bool is_empty = true;
    for (end = 0; end < count && (is_empty || held < wanted); ++end) {
      if (!survives(end)) continue;
      held = rounded_sum(held, weights[end]);
      is_empty = false;
    }
    total = held;
  }
  const double target = rounded_product(uniform_at(settings.seed, position), total);
  double sum = 0;
  int last = 0;
  for (int i = 0; i < end; ++i) {
    if (!survives(i) || weights[i] == 0) continue;
    sum = rounded_sum(sum, weights[i]);
    last = i;
    if (sum > target) break;
  }
  return last;
}

#undef MORAY_ON_BOTH

}  // namespace moray::cuda
