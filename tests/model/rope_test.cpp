// Rotary frequencies against transformers': at long positions an ulp of a frequency is an angle.
#include "src/model/rope.h"

#include "fixture.h"

namespace moray {
namespace {

struct Setting {
  const char* name;
  double theta;
  int64_t rotary_dim;
  std::optional<YarnScaling> yarn;
};

TEST(Rope, FrequenciesAndScaleAreThoseOfTransformers) {
  auto file = SafetensorsFile::open(data_folder() + "rope.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  YarnScaling yarn4;
  yarn4.factor = 4;
  yarn4.original_max_positions = 262144;
  const YarnScaling yarn2{.factor = 2,
                          .original_max_positions = 2048,
                          .beta_fast = 16,
                          .beta_slow = 2,
                          .attention_factor = 1.25};
  for (const Setting& setting :
       {Setting{"default_1e7_64", 1e7, 64, std::nullopt},
        Setting{"default_5e6_64", 5e6, 64, std::nullopt},
        Setting{"default_1e6_128", 1e6, 128, std::nullopt}, Setting{"yarn4_1e7_64", 1e7, 64, yarn4},
        Setting{"yarn2_1e4_16", 1e4, 16, yarn2}}) {
    ModelConfig config;
    config.rope_theta = setting.theta;
    config.rotary_dim = setting.rotary_dim;
    config.yarn = setting.yarn;
    const Rope rope = make_rope(config);
    const auto golden = read_values<float>(*file, setting.name);
    ASSERT_EQ(rope.inv_freq.size(), golden.size()) << setting.name;
    for (size_t i = 0; i < golden.size(); ++i) {
      // torch's vectorised power may be an ulp off the correctly rounded one: 2 ulp of 2^-24.
      EXPECT_NEAR(rope.inv_freq[i], golden[i], golden[i] * 1.2e-7) << setting.name << " " << i;
    }
    const auto scale = read_values<float>(*file, std::string(setting.name) + ".scale");
    EXPECT_NEAR(rope.scale, scale[0], 1.2e-7) << setting.name;
  }
}

}  // namespace
}  // namespace moray
