// Element types and their exact scalar conversions.
//
// Invariant: widening (to float) is exact for every finite code; narrowing rounds to nearest even.
// The wide versions in src/kernels/cpu must agree bit for bit with these on every code.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace moray {

enum class DType : uint8_t { kF32, kF16, kBF16, kF8E4M3, kU8, kI32, kI64 };

// Bytes an element occupies; every type here is whole bytes.
constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kU8:
      return 1;
    case DType::kI64:
      return 8;
  }
  return 0;
}

// The name safetensors headers use: "F32", "BF16", "F8_E4M3", ...
constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kU8:
      return "U8";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
  }
  return "?";
}

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest even; a NaN stays a (quiet) NaN.
inline uint16_t float_to_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<uint16_t>(bits >> 16);
}

inline float round_to_bf16(float value) {
  return bf16_to_float(float_to_bf16(value));
}

inline float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  return sign ? -magnitude : magnitude;
}

// OCP E4M3: sign, 4 exponent bits with bias 7, 3 mantissa bits; no infinity, S.1111.111 is NaN.
inline float f8e4m3_to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t exponent = (bits >> 3) & 0xfu;
  const uint32_t mantissa = bits & 0x7u;
  if ((bits & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
  const float magnitude = std::ldexp(static_cast<float>(mantissa), -9);
  return sign ? -magnitude : magnitude;
}

// Round to nearest even; what is beyond 448, infinities too, becomes 448; a NaN stays a NaN.
inline uint8_t float_to_f8e4m3(float value) {
  constexpr float kMax = 448.0f;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  if (!(magnitude <= kMax)) return static_cast<uint8_t>(sign | (magnitude > kMax ? 0x7eu : 0x7fu));
  // Subnormal codes count steps of 2^-9, the spacing of floats from 2^14 on.
  if (magnitude < 0x1p-6f) {
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(magnitude + 0x1p14f) & 0xfu));
  }
  uint32_t rounded = bits & 0x7fffffffu;
  rounded += 0x7ffffu + (rounded >> 20 & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

}  // namespace moray
