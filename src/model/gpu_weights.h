// A model's weights in device memory, as published: where each matrix goes, and bringing it there.
//
// Invariant: codes and scales are those of the checkpoint, rows padded with zeros to the stride of
// cuda::Matrix; vectors (norms, taps, decay parameters) are FP32. Routed experts of a layer are
// equal records one after the other (cuda::ExpertRecords). gpu_weights_bytes() of the blank weights
// of a config is, to the byte, what the upload of its checkpoint allocates. The MTP head stays on
// the host.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "src/gpu/memory.h"
#include "src/kernels/cuda/attention_params.h"
#include "src/kernels/cuda/delta_params.h"
#include "src/model/weights.h"

namespace moray::gpu {
class KernelSet;
class Stream;
}  // namespace moray::gpu

namespace moray {

struct GpuAttention {
  cuda::Matrix q, k, v, out;
  cuda::AttentionWeights vectors;
};
struct GpuDelta {
  cuda::Matrix qkv, z, b, a, out;
  cuda::DeltaWeights vectors;
};
struct GpuLayer {
  LayerKind kind = LayerKind::kFullAttention;
  const float* input_norm = nullptr;
  const float* post_norm = nullptr;
  GpuAttention attention{};
  GpuDelta delta{};
  cuda::Matrix router{};
  cuda::Matrix shared_gate{};  // data null without a shared expert
  cuda::ExpertRecords experts{};
  cuda::ExpertRecords shared{};  // base null without one
};

struct GpuWeights {
  cuda::Matrix embedding{};
  cuda::Matrix head{};  // the embedding itself when tied
  const float* final_norm = nullptr;
  std::vector<GpuLayer> layers;
  std::vector<gpu::DeviceMemory> memory;  // what all of these point into
};

// What is FP8, else BF16: classes of matrices (in blocks), and the KV cache, which is a choice of
// the user. Constants of the kernels.
struct GpuFormats {
  bool projections_fp8 = false;
  bool experts_fp8 = false;
  bool shared_fp8 = false;
  bool head_fp8 = false;
  bool kv_fp8 = false;
};
// Of the matrices. kUnsupported when a class mixes formats, or holds F16 or F32; the message names
// the class.
Result<GpuFormats> gpu_formats(const Weights& weights);

// Device memory the weights take. Blank weights (blank_weights.h) will do.
int64_t gpu_weights_bytes(const Weights& weights);

// (bytes done, bytes in all); false cancels.
using UploadProgress = std::function<bool(int64_t, int64_t)>;

// Copies through pinned memory: four pieces of up to 64 MiB in turn, freed at the end. Waits until
// all has arrived. Errors: kExhausted, kCancelled, kIo.
Result<GpuWeights> upload_weights(const std::shared_ptr<gpu::Device>& device, gpu::Stream& stream,
                                  const Weights& weights, const UploadProgress& progress);

// Made on the device by the kernel of program "random_fill.cu", bit for bit what random_weights()
// makes on the host. `blank` has the shapes; its vectors are filled here.
Result<GpuWeights> random_gpu_weights(const std::shared_ptr<gpu::Device>& device,
                                      gpu::Stream& stream, const gpu::KernelSet& kernels,
                                      const ModelConfig& config, HeadFormat head, uint64_t seed,
                                      const UploadProgress& progress);

}  // namespace moray
