// Made-up weights on the device: the parameter of kernel "random_fill" and the numbers both sides
// agree on, so that a host builds the same matrix bit for bit (src/model/random_weights.h).
//
// Element i = row * cols + col of a matrix is u(key, i) * amplitude, rounded to the format; u is
// uniform in (-1, 1) with 16 random bits. FP8 codes are those of u * 448 and every scale is
// amplitude / 448.
#pragma once

namespace moray::cuda {

struct RandomFill {
  void* data;     // Matrix::data, columns [cols, stride) are written as zero
  float* scales;  // kFp8: every one of them is written; else null
  int rows, cols, stride, scale_count;
  int format;  // Format
  float amplitude;
  unsigned long long key;
};

inline constexpr float kRandomCodeMax = 448.0f;  // the largest finite E4M3 number

#ifdef __CUDACC_RTC__
#define MORAY_ON_BOTH __device__ __forceinline__
#else
#define MORAY_ON_BOTH inline
#endif

// 64 random bits from a counter: the finaliser of SplitMix64 (Steele, Lea, Flood, 2014).
MORAY_ON_BOTH unsigned long long random_word(unsigned long long key, unsigned long long counter) {
  unsigned long long z = key + (counter + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// 16 random bits to a number in (-1, 1), odd multiples of 2^-16: exact in FP32.
MORAY_ON_BOTH float random_unit(unsigned bits) {
  return (static_cast<float>(static_cast<int>(bits) - 32768) + 0.5f) / 32768.0f;
}

#undef MORAY_ON_BOTH

}  // namespace moray::cuda
