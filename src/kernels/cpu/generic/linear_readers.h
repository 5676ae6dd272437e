// How linear's loops read weights: engines and readers.
//
// An engine E has X (element of x), Wide (operand of one product), kStep (elements a product
// takes), load(x) and mad(sum, wide, wide). A reader R turns stored weights into two Wides,
// exactly, and notices NaN codes that its conversion cannot carry.
#pragma once

#include <cstdint>
#include <cstring>

namespace moray::cpu {
namespace {

constexpr int64_t kSlice = 128;

template <class L>
struct F32Engine {
  using X = float;
  using F = typename L::F;
  using Wide = typename L::F;
  static constexpr int kStep = L::kWidth;
  static Wide load(const float* x) { return L::load(x); }
  static F mad(F sum, Wide weights, Wide x) { return L::fma(weights, x, sum); }
  static void store_wide(float* to, Wide weights) { L::store(to, weights); }
};

// Readers. kBytes a weight; kScale: what the slice's scale must be multiplied with.
template <class L>
struct ReadF32 {
  static constexpr int kBytes = 4;
  static constexpr float kScale = 1;
  static constexpr bool kPrefetch = true;
  void load(const char* from, typename L::F& a, typename L::F& b) {
    const auto* floats = reinterpret_cast<const float*>(from);
    a = L::load(floats);
    b = L::load(floats + L::kWidth);
  }
  bool saw_nan() const { return false; }
};

template <class L>
struct ReadF16 {
  static constexpr int kBytes = 2;
  static constexpr float kScale = 1;
  static constexpr bool kPrefetch = true;
  void load(const char* from, typename L::F& a, typename L::F& b) {
    a = L::load_f16(from);
    b = L::load_f16(from + 2 * L::kWidth);
  }
  bool saw_nan() const { return false; }
};

template <class L>
struct ReadBf16 {
  static constexpr int kBytes = 2;
  static constexpr float kScale = 1;
  static constexpr bool kPrefetch = true;
  void load(const char* from, typename L::F& a, typename L::F& b) {
    a = L::load_bf16(from);
    b = L::load_bf16(from + 2 * L::kWidth);
  }
  bool saw_nan() const { return false; }
};

template <class L>
struct ReadFp8 {
  static constexpr int kBytes = 1;
  static constexpr bool kPrefetch = true;
  static constexpr float kScale = 256;  // Lanes::load_fp8 gives values / 256
  typename L::Codes magnitudes = L::no_codes();
  void load(const char* from, typename L::F& a, typename L::F& b) {
    L::load_fp8(from, a, b, magnitudes);
  }
  bool saw_nan() const { return L::has_nan_code(magnitudes); }
};

// Weights widened earlier; NaN codes were noticed then.
template <class E, class R>
struct ReadWidened {
  static constexpr int kBytes = sizeof(typename E::X);
  static constexpr float kScale = R::kScale;
  static constexpr bool kPrefetch = false;  // in the first or second cache already
  void load(const char* from, typename E::Wide& a, typename E::Wide& b) {
    a = *reinterpret_cast<const UnalignedWide*>(from);
    b = *reinterpret_cast<const UnalignedWide*>(from + sizeof(typename E::Wide));
  }
  bool saw_nan() const { return false; }

 private:
  typedef typename E::Wide UnalignedWide __attribute__((aligned(4), may_alias));
};

// One row as E reads it, zero up to a multiple of a slice; a NaN code makes all of it NaN, which is
// what the row's output must be.
template <class E, class R>
inline void widen_row(const char* from, int64_t k, typename E::X* to, typename E::Wide nan) {
  R reader;
  typename E::X* const begin = to;
  for (int64_t done = 0; done < k; done += kSlice, from += kSlice * R::kBytes) {
    alignas(64) char copy[kSlice * R::kBytes];
    const char* slice = from;
    if (k - done < kSlice) {
      std::memset(copy, 0, sizeof(copy));
      std::memcpy(copy, from, static_cast<size_t>((k - done) * R::kBytes));
      slice = copy;
    }
    for (int i = 0; i < kSlice; i += 2 * E::kStep, to += 2 * E::kStep) {
      typename E::Wide a, b;
      reader.load(slice + i * R::kBytes, a, b);
      E::store_wide(to, a);
      E::store_wide(to + E::kStep, b);
    }
  }
  if (!reader.saw_nan()) return;
  for (typename E::X* at = begin; at < to; at += E::kStep) E::store_wide(at, nan);
}

}  // namespace
}  // namespace moray::cpu
