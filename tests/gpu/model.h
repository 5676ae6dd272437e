// A model on the test GPU, and running it the way tests/model runs one on the CPU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/model/gpu_forward.h"
#include "tests/gpu/device.h"
#include "tests/model/fixture.h"

namespace moray {

// Kernels for a config: built once a process and config (the cache makes later ones cheap).
inline Result<GpuKernels> test_kernels(const Weights& weights, KvFormat kv) {
  ASSIGN_OR_RETURN(GpuFormats formats, gpu_formats(weights));
  formats.kv_fp8 = kv == KvFormat::kFp8;
  return build_gpu_kernels(gpu::test_device(), weights.config, formats, nullptr);
}

// Null after a failure has been added.
inline std::shared_ptr<GpuModel> gpu_model(const Weights& weights, KvFormat kv = KvFormat::kBf16) {
  const std::shared_ptr<gpu::Device> device = gpu::test_device();
  if (device == nullptr) return nullptr;
  auto model = std::make_shared<GpuModel>();
  model->device = device;
  model->config = weights.config;
  const auto fill = [&]() -> Status {
    ASSIGN_OR_RETURN(model->kernels, test_kernels(weights, kv));
    ASSIGN_OR_RETURN(const auto stream, gpu::Stream::create(device));
    ASSIGN_OR_RETURN(model->weights, upload_weights(device, *stream, weights, nullptr));
    return Status();
  };
  const Status status = fill();
  EXPECT_TRUE(status.ok()) << status.message();
  return status.ok() ? model : nullptr;
}

// One sequence on the GPU; calls that fail fail the test.
class GpuRunner {
 public:
  GpuRunner(std::shared_ptr<const GpuModel> model, bool use_w8a8, int64_t block_tokens = 256,
            int64_t capacity = 512)
      : model_(std::move(model)) {
    for (int32_t id = 0; id < model_->config.vocab_rows; ++id) sampleable_.push_back(id);
    auto created = GpuForward::create(model_, {.capacity = capacity,
                                               .block_tokens = block_tokens,
                                               .use_w8a8 = use_w8a8,
                                               .sampleable = sampleable_});
    EXPECT_TRUE(created.ok()) << created.status().message();
    if (created.ok()) forward_ = std::move(created).value();
  }
  GpuForward& forward() { return *forward_; }
  GpuState& state() { return forward_->state(); }

  // Feeds `tokens` in calls of at most `call_tokens` and returns the logits of all of them.
  Matrix feed(std::span<const int32_t> tokens, int64_t call_tokens) {
    Matrix out{static_cast<int64_t>(tokens.size()), model_->config.vocab_rows, {}};
    out.values.resize(static_cast<size_t>(out.rows * out.cols), NAN);
    for (int64_t at = 0; at < out.rows; at += call_tokens) {
      const int64_t count = std::min(call_tokens, out.rows - at);
      const Status status =
          forward_->forward(tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(count)),
                            count, out.values.data() + at * out.cols);
      EXPECT_TRUE(status.ok()) << status.message();
      if (!status.ok()) break;
    }
    return out;
  }

 private:
  std::shared_ptr<const GpuModel> model_;
  std::vector<int32_t> sampleable_;
  std::unique_ptr<GpuForward> forward_;
};

// Mean KL(golden || found) over the rows; infinite when anything is not finite.
inline double mean_kl(const Matrix& golden, const Matrix& found, int64_t begin = 0) {
  double kl = 0;
  for (int64_t t = 0; t < found.rows; ++t) {
    kl += kl_divergence(golden.row(begin + t), found.row(t), found.cols);
  }
  return std::isfinite(kl) ? kl / static_cast<double>(found.rows) : INFINITY;
}

}  // namespace moray
