// FP8 activations through the wiring: the shipped model has shapes that the W8A8 kernels take.
#include <gtest/gtest.h>

#include <filesystem>

#include "src/model/gpu_check.h"
#include "tests/gpu/model.h"

namespace moray {
namespace {

TEST(WiringOfNano, BlocksWithFp8ActivationsCostLittleOnText) {
  const std::string folder = std::string(MORAY_SOURCE_DIR) + "/models/moray-nano";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "models/moray-nano is not there";
  const auto checkpoint = Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const auto weights = load_weights(*checkpoint, {});
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  const auto file = SafetensorsFile::open(data_folder() + "moray-nano-golden.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto text = read_values<int32_t>(*file, "tokens");
  const auto model = gpu_model(**weights);
  ASSERT_NE(model, nullptr);
  ASSERT_TRUE(model->kernels.has_w8a8);
  GpuRunner runner(model, true, 128, 128);
  const std::span<const int32_t> tokens = std::span(text).first(100);
  const Matrix quantised = runner.feed(tokens, 100);
  runner.state().rewind(0);
  runner.forward().use_w8a8(false);
  const Matrix blocks = runner.feed(tokens, 100);
  const double kl = mean_kl(blocks, quantised);
  EXPECT_LE(kl, 1e-2);
  EXPECT_GT(kl, 1e-6) << "FP8 activations were not used";
  runner.forward().use_w8a8(true);
  const auto check = check_paths(runner.forward(), (*weights)->config.vocab_rows);
  ASSERT_TRUE(check.ok()) << check.status().message();
  EXPECT_LE(check->block_kl, kGpuCheckKlMax / 10);
  EXPECT_LE(check->w8a8_kl, kGpuCheckKlMax / 2);
  EXPECT_GT(check->w8a8_kl, check->block_kl);
}

}  // namespace
}  // namespace moray
