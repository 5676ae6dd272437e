// Weights on the device are the checkpoint's, to the bit, padding zero; random ones are the host's.
#include <gtest/gtest.h>

#include "src/kernels/cuda/constants.h"
#include "src/kernels/cuda/sources.h"
#include "src/model/blank_weights.h"
#include "src/model/gpu_layout.h"
#include "src/model/random_weights.h"
#include "tests/gpu/model.h"
#include "tests/support/gates.h"

namespace moray {
namespace {

std::vector<char> read_back(gpu::Stream& stream, const void* device, int64_t bytes) {
  std::vector<char> host(static_cast<size_t>(bytes));
  gpu::copy_to_host(stream, host.data(), device, bytes);
  const Status status = stream.synchronize();
  EXPECT_TRUE(status.ok()) << status.message();
  return host;
}

// Compares a matrix of the device with the host's view of it.
void expect_same(gpu::Stream& stream, const MatrixView& host, const cuda::Matrix& device) {
  ASSERT_EQ(device.rows, host.rows);
  ASSERT_EQ(device.cols, host.cols);
  const int64_t element = dtype_bytes(host.dtype);
  const auto found = read_back(stream, device.data, padded_bytes(device));
  for (int64_t row = 0; row < host.rows; ++row) {
    const char* at = found.data() + row * device.stride * element;
    ASSERT_EQ(std::memcmp(at, static_cast<const char*>(host.data) + row * host.cols * element,
                          static_cast<size_t>(host.cols * element)),
              0)
        << "row " << row;
    for (int64_t i = host.cols * element; i < device.stride * element; ++i) {
      ASSERT_EQ(at[i], 0) << "padding of row " << row;
    }
  }
  if (host.scales == nullptr) return;
  const int64_t bytes = 4 * ((host.rows + kScaleBlock - 1) / kScaleBlock) * host.scale_cols();
  const auto scales = read_back(stream, device.scales, bytes);
  EXPECT_EQ(std::memcmp(scales.data(), host.scales, static_cast<size_t>(bytes)), 0) << "scales";
}

// Every matrix and vector of `weights`, found again where the layout says.
void expect_uploaded(gpu::Stream& stream, const Weights& weights, const GpuWeights& uploaded) {
  std::array<char*, kGpuArenas> arenas{};
  for (size_t i = 0; i < kGpuArenas; ++i) arenas[i] = uploaded.memory[i].data();
  const GpuLayout layout = lay_out(weights, arenas);
  for (const MatrixCopy& copy : layout.matrices) {
    ASSERT_NO_FATAL_FAILURE(expect_same(stream, *copy.from, copy.to));
  }
  for (const VectorCopy& vector : layout.vectors) {
    const auto bytes = static_cast<int64_t>(vector.from.size_bytes());
    const auto found = read_back(stream, vector.to, bytes);
    EXPECT_EQ(std::memcmp(found.data(), vector.from.data(), found.size()), 0);
  }
}

class GpuWeightsOf : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuWeightsOf, AreTheCheckpointsToTheBit) {
  MORAY_GPU_TEST();
  const Fixture fixture = load_fixture(GetParam());
  const auto stream = gpu::test_stream();
  ASSERT_NE(stream, nullptr);
  const auto uploaded = upload_weights(gpu::test_device(), *stream, *fixture.weights, nullptr);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status().message();
  int64_t bytes = 0;
  for (const gpu::DeviceMemory& block : uploaded->memory) bytes += block.bytes();
  EXPECT_EQ(bytes, gpu_weights_bytes(*fixture.weights));
  expect_uploaded(*stream, *fixture.weights, *uploaded);
}

INSTANTIATE_TEST_SUITE_P(Tiny, GpuWeightsOf,
                         ::testing::Values("tiny-fused", "tiny-experts", "tiny-fp8"),
                         fixture_label);

TEST(GpuWeights, LoadingCanBeCancelled) {
  MORAY_GPU_TEST();
  const Fixture fixture = load_fixture("tiny-fp8");
  const auto stream = gpu::test_stream();
  ASSERT_NE(stream, nullptr);
  const auto result = upload_weights(gpu::test_device(), *stream, *fixture.weights,
                                     [](int64_t, int64_t) { return false; });
  EXPECT_EQ(result.status().code(), StatusCode::kCancelled);
}

// Host and device make the same numbers, FP8 and BF16, with and without padded rows.
TEST(GpuWeights, RandomOnesAreTheHostsToTheBit) {
  MORAY_GPU_TEST();
  const auto stream = gpu::test_stream();
  ASSERT_NE(stream, nullptr);
  ThreadPool threads(2);
  for (const char* name : {"tiny-fused", "tiny-fp8"}) {
    SCOPED_TRACE(name);
    const Fixture fixture = load_fixture(name);
    const ModelConfig& config = fixture.weights->config;
    const uint32_t seed = fresh_seed();
    SCOPED_TRACE("seed " + std::to_string(seed));
    gpu::BuildRequest request;
    request.sources = cuda::sources();
    request.programs = {"random_fill.cu"};
    request.constants = cuda::constants_text(gpu_constants(config, {}, gpu::test_device()->info()));
    const auto kernels = gpu::KernelSet::build(gpu::test_device(), request, nullptr);
    ASSERT_TRUE(kernels.ok()) << kernels.status().message();
    const auto host = random_weights(config, HeadFormat::kPublished, seed, threads, nullptr);
    ASSERT_TRUE(host.ok());
    const auto made = random_gpu_weights(gpu::test_device(), *stream, **kernels, config,
                                         HeadFormat::kPublished, seed, nullptr);
    ASSERT_TRUE(made.ok()) << made.status().message();
    expect_uploaded(*stream, **host, *made);
  }
}

}  // namespace
}  // namespace moray
