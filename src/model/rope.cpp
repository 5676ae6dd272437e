// Rotary frequencies; formulas in rope.h. YaRN follows its paper and the published code of it in
// rounding the ramp's borders outwards to whole dims.
#include "src/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace moray {
namespace {

// Dims [low, high] between which YaRN blends from unscaled to scaled frequencies.
struct Ramp {
  float low;
  float high;
};

Ramp yarn_ramp(const YarnScaling& yarn, double theta, int64_t rotary_dim) {
  // The (fractional) pair index whose wavelength fits `turns` times into the original context.
  const auto index_of_turns = [&](double turns) {
    const double wavelength = static_cast<double>(yarn.original_max_positions) / turns;
    return static_cast<double>(rotary_dim) * std::log(wavelength / (2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  const double low = std::max(std::floor(index_of_turns(yarn.beta_fast)), 0.0);
  double high =
      std::min(std::ceil(index_of_turns(yarn.beta_slow)), static_cast<double>(rotary_dim - 1));
  if (high == low) high += 0.001;
  return {static_cast<float>(low), static_cast<float>(high)};
}

}  // namespace

Rope make_rope(const ModelConfig& config) {
  Rope rope;
  const int64_t pairs = config.rotary_dim / 2;
  rope.inv_freq.resize(static_cast<size_t>(pairs));
  Ramp ramp{};
  if (config.yarn) {
    ramp = yarn_ramp(*config.yarn, config.rope_theta, config.rotary_dim);
    rope.scale = static_cast<float>(
        config.yarn->attention_factor.value_or(0.1 * std::log(config.yarn->factor) + 1));
  }
  for (int64_t i = 0; i < pairs; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.rotary_dim);
    const float period = static_cast<float>(std::pow(config.rope_theta, exponent));
    float frequency = 1.0f / period;
    if (config.yarn) {
      const float scaled = 1.0f / (static_cast<float>(config.yarn->factor) * period);
      const float position = (static_cast<float>(i) - ramp.low) / (ramp.high - ramp.low);
      const float kept = 1.0f - std::clamp(position, 0.0f, 1.0f);
      frequency = scaled * (1.0f - kept) + frequency * kept;
    }
    rope.inv_freq[static_cast<size_t>(i)] = frequency;
  }
  return rope;
}

}  // namespace moray
