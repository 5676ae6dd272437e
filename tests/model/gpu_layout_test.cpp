// Where weights lie in device memory, and that a config alone tells how much there will be.
#include "src/model/gpu_layout.h"

#include <algorithm>
#include <filesystem>

#include "fixture.h"
#include "src/model/blank_weights.h"

namespace moray {
namespace {

struct Extent {
  const char* begin;
  const char* end;
};

void add_matrix(const cuda::Matrix& matrix, std::vector<Extent>& all) {
  const auto* data = static_cast<const char*>(matrix.data);
  all.push_back({data, data + padded_bytes(matrix)});
  if (matrix.scales == nullptr) return;
  const int64_t scales = (matrix.rows + kScaleBlock - 1) / kScaleBlock *
                         ((matrix.cols + kScaleBlock - 1) / kScaleBlock);
  const auto* bytes = reinterpret_cast<const char*>(matrix.scales);
  all.push_back({bytes, bytes + 4 * scales});
}

TEST(GpuLayout, PiecesAreAlignedApartAndInside) {
  for (const char* name : {"tiny-fused", "tiny-experts", "tiny-fp8"}) {
    SCOPED_TRACE(name);
    const Fixture fixture = load_fixture(name);
    // Addresses that mean nothing, far apart.
    const std::array<char*, kGpuArenas> arenas = {reinterpret_cast<char*>(uintptr_t{1} << 40),
                                                  reinterpret_cast<char*>(uintptr_t{1} << 41),
                                                  reinterpret_cast<char*>(uintptr_t{1} << 42)};
    const GpuLayout layout = lay_out(*fixture.weights, arenas);
    std::vector<Extent> all;
    for (const MatrixCopy& copy : layout.matrices) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(copy.to.data) % 256, 0u);
      EXPECT_EQ(copy.to.stride % 64, 0);
      EXPECT_GE(copy.to.stride, copy.to.cols);
      add_matrix(copy.to, all);
    }
    for (const VectorCopy& vector : layout.vectors) {
      const auto* bytes = reinterpret_cast<const char*>(vector.to);
      all.push_back({bytes, bytes + vector.from.size_bytes()});
    }
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < all.size(); ++i) EXPECT_LE(all[i - 1].end, all[i].begin);
    for (const Extent& extent : all) {
      const auto in = [&](size_t arena) {
        return extent.begin >= arenas[arena] && extent.end <= arenas[arena] + layout.bytes[arena];
      };
      EXPECT_TRUE(in(0) || in(1) || in(2));
    }
  }
}

TEST(GpuLayout, RecordsHoldTheirExperts) {
  const Fixture fixture = load_fixture("tiny-fp8");
  const GpuLayout layout = lay_out(*fixture.weights, {});
  const GpuLayer& layer = layout.weights.layers.front();
  const MoeWeights& moe = fixture.weights->layers.front().moe;
  for (size_t e = 0; e < moe.experts.size(); ++e) {
    const char* record = layer.experts.base + static_cast<int64_t>(e) * layer.experts.record_bytes;
    const auto place_of = [&](const MatrixView& view) {
      for (const MatrixCopy& copy : layout.matrices) {
        if (copy.from == &view) return static_cast<const char*>(copy.to.data);
      }
      return static_cast<const char*>(nullptr);
    };
    EXPECT_EQ(place_of(moe.experts[e].gate), record);
    EXPECT_EQ(place_of(moe.experts[e].up), record + layer.experts.up);
    EXPECT_EQ(place_of(moe.experts[e].down), record + layer.experts.down);
  }
  EXPECT_EQ(layer.experts.width, fixture.weights->config.expert_dim);
}

TEST(GpuLayout, AConfigAlonePredictsTheShippedModelsBytes) {
  const std::string folder = std::string(MORAY_SOURCE_DIR) + "/models/moray-nano";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "models/moray-nano is not there";
  const auto checkpoint = Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const auto weights = load_weights(*checkpoint, {.is_read = false});
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(
      gpu_weights_bytes(blank_weights((*checkpoint)->config(), HeadFormat::kPublished, nullptr)),
      gpu_weights_bytes(**weights));
}

// Qwen3.6-35B-A3B-FP8 without MTP and vision: 31.8 billion bytes of FP8 trunk experts, 1.4 of
// other FP8 matrices, two BF16 tables of 1.02, scales of a 4096th, norms and gates.
TEST(GpuLayout, AConfigAlonePredictsAThirtyFiveBillionParameterModel) {
  const auto config =
      read_model_config(std::string(MORAY_SOURCE_DIR) + "/tests/configs/qwen3.6-35b-a3b");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const int64_t experts = int64_t{40} * 257 * 3 * 512 * 2048;
  const int64_t delta = int64_t{30} * 2048 * (8192 + 4096 + 4096);
  const int64_t attention = int64_t{10} * 2048 * (8192 + 512 + 512 + 4096);
  const int64_t tables = int64_t{2} * 2 * 248320 * 2048;
  const int64_t small = int64_t{40} * 2 * 257 * 2048 + int64_t{30} * 2 * 64 * 2048;
  const int64_t fp8 = experts + delta + attention;
  const int64_t expected = fp8 + fp8 / 4096 + tables + small;
  const int64_t found = gpu_weights_bytes(blank_weights(*config, HeadFormat::kPublished, nullptr));
  EXPECT_NEAR(static_cast<double>(found), static_cast<double>(expected),
              0.001 * static_cast<double>(expected));
}

}  // namespace
}  // namespace moray
