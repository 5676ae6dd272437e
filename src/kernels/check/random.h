// Random inputs of checks: a seed makes the same ones on every machine.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "src/tensor/dtype.h"

namespace moray::check {

class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed), engine_(seed) {}
  std::string trace() const { return "seed " + std::to_string(seed_); }
  float normal() { return normal_(engine_); }
  float uniform() { return std::uniform_real_distribution<float>(0, 1)(engine_); }
  int64_t below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(engine_); }
  uint64_t word() { return engine_(); }
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
  uint64_t seed_;
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

}  // namespace moray::check
