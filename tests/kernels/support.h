// What every op test needs: fresh random inputs with a printed seed, guarded and poisoned outputs,
// weights of every format, the levels this machine can run, comparison against a derived bound.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "src/kernels/cpu/cpu.h"
#include "src/kernels/cpu/kernels.h"
#include "src/kernels/ref/ref.h"
#include "src/tensor/normal_tiles.h"

namespace moray {

inline constexpr double kF32Epsilon = 0x1p-24;  // half a unit in the last place of FP32, relative
inline constexpr double kBf16Spacing = 0x1p-7;  // largest distance of BF16 neighbours, relative

// A generator with a fresh seed; put SCOPED_TRACE(random.trace()) beside it.
class Random {
 public:
  Random() : seed_(std::random_device{}()), engine_(seed_) {}
  std::string trace() const { return "seed " + std::to_string(seed_); }
  float normal() { return normal_(engine_); }
  float uniform() { return std::uniform_real_distribution<float>(0, 1)(engine_); }
  int64_t below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(engine_); }
  std::vector<float> normals(int64_t count, float scale = 1) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal() * scale;
    return values;
  }
  std::vector<float> bf16_normals(int64_t count, float scale = 1) {
    auto values = normals(count, scale);
    for (float& value : values) value = round_to_bf16(value);
    return values;
  }

 private:
  unsigned seed_;
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

// An array between two guards, filled with NaN so that an element nobody wrote is seen.
class Guarded {
 public:
  explicit Guarded(int64_t count) : count_(count), memory_(size_t(count + 2 * kGuard), kPattern) {
    std::fill(data(), data() + count, std::nanf("1"));
  }
  float* data() { return memory_.data() + kGuard; }
  const float* data() const { return memory_.data() + kGuard; }
  int64_t size() const { return count_; }
  bool intact() const {
    for (int64_t i = 0; i < kGuard; ++i) {
      if (memory_[size_t(i)] != kPattern) return false;
      if (memory_[size_t(kGuard + count_ + i)] != kPattern) return false;
    }
    return true;
  }
  bool same_bits(const Guarded& other) const {
    return count_ == other.count_ &&
           std::memcmp(data(), other.data(), size_t(count_) * sizeof(float)) == 0;
  }

 private:
  static constexpr int64_t kGuard = 32;
  static constexpr float kPattern = -1.2345e33f;
  int64_t count_;
  std::vector<float> memory_;
};

// A matrix of any weight format that owns its bytes; unaligned on purpose, as files are.
struct OwnedMatrix {
  std::vector<unsigned char> bytes;
  std::vector<float> scales;
  std::vector<uint8_t> normal_tiles;
  MatrixView view;
};

inline uint16_t float_to_f16_truncated(
    float value) {  // any F16 near value; exactness is not needed
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 112;
  if (exponent <= 0) return static_cast<uint16_t>(bits >> 16 & 0x8000);
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | unsigned(exponent) << 10 |
                               (bits >> 13 & 0x3ff));
}

// Replaces the zeros and subnormals of about half of an FP8 matrix's tiles by normal numbers, as
// most tiles of a trained matrix have none, and maps the result.
inline void make_normal_tiles(Random& random, OwnedMatrix& m, unsigned char* codes) {
  for (int64_t tile = 0; tile < normal_tile_count(m.view); ++tile) {
    if (random.below(2) == 0) continue;
    const int64_t row = tile / m.view.scale_cols() * kNormalTileRows;
    const int64_t col = tile % m.view.scale_cols() * kScaleBlock;
    for (int64_t r = row; r < std::min(row + kNormalTileRows, m.view.rows); ++r) {
      for (int64_t c = col; c < std::min(col + kScaleBlock, m.view.cols); ++c) {
        unsigned char& code = codes[r * m.view.cols + c];
        if ((code & 0x78) == 0) code |= 0x08;
      }
    }
  }
  m.normal_tiles.resize(size_t(normal_tile_count(m.view)));
  find_normal_tiles(m.view, m.normal_tiles.data());
  m.view.normal_tiles = m.normal_tiles.data();
}

inline OwnedMatrix random_matrix(Random& random, DType dtype, int64_t rows, int64_t cols,
                                 float scale = 0.05f) {
  OwnedMatrix m;
  const int64_t size = dtype_bytes(dtype), offset = 1;
  m.bytes.resize(size_t(rows * cols * size + offset));
  for (int64_t i = 0; i < rows * cols; ++i) {
    unsigned char* at = m.bytes.data() + offset + i * size;
    const float value = random.normal() * scale;
    if (dtype == DType::kF32) {
      std::memcpy(at, &value, 4);
    } else if (dtype == DType::kF8E4M3) {
      const int64_t code = random.below(256);  // all codes but the NaNs
      *at = static_cast<unsigned char>((code & 0x7f) == 0x7f ? code ^ 1 : code);
    } else {
      const uint16_t bits =
          dtype == DType::kBF16 ? float_to_bf16(value) : float_to_f16_truncated(value);
      std::memcpy(at, &bits, 2);
    }
  }
  m.view = {.data = m.bytes.data() + offset, .rows = rows, .cols = cols, .dtype = dtype};
  if (dtype == DType::kF8E4M3) {
    const int64_t blocks = (rows + kScaleBlock - 1) / kScaleBlock * m.view.scale_cols();
    for (int64_t i = 0; i < blocks; ++i) {
      m.scales.push_back(scale / 100 * (0.5f + random.uniform()));
    }
    m.view.scales = m.scales.data();
    make_normal_tiles(random, m, m.bytes.data() + offset);
  }
  return m;
}

// The levels of instructions this machine has, each with its table.
inline std::vector<const cpu::Kernels*> all_levels() {
  std::vector<const cpu::Kernels*> tables;
  for (cpu::Level level : {cpu::Level::kAvx2, cpu::Level::kAvx512}) {
    const auto table = cpu::kernels_for(level);
    if (table.ok()) tables.push_back(*table);
  }
  return tables;
}

inline std::string level_trace(const cpu::Kernels& kernels) {
  return "level " + std::string(cpu::level_name(kernels.level));
}

// Every |actual - expected| <= bound, element by element; reports the worst one.
template <typename Bound>
void expect_close(const float* actual, const float* expected, int64_t count, Bound&& bound) {
  int64_t worst = -1;
  double worst_ratio = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double error = std::abs(double{actual[i]} - expected[i]);
    const double limit = bound(i);
    const double ratio = error <= limit ? error / limit : 1 + error / limit;  // NaN: ratio is NaN
    if (!(ratio <= worst_ratio) && error != 0) {
      worst = i;
      worst_ratio = ratio;
      if (std::isnan(ratio)) break;
    }
  }
  if (worst >= 0 && !(worst_ratio <= 1)) {
    ADD_FAILURE() << "element " << worst << ": found " << actual[worst] << ", expected "
                  << expected[worst] << " within " << bound(worst);
  }
}

// Workspace of exactly the size an op asked for, poisoned, with guards.
class Workspace {
 public:
  explicit Workspace(int64_t floats) : memory_(floats) {}
  std::span<float> span() { return {memory_.data(), size_t(memory_.size())}; }
  bool intact() const { return memory_.intact(); }

 private:
  Guarded memory_;
};

}  // namespace moray
