// The kernels of one model on one GPU: which programs it needs and the constants they get.
//
// Invariant: what a config cannot run is refused here in one sentence, before anything is compiled
// or allocated.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/formats/model_config.h"
#include "src/gpu/device.h"
#include "src/gpu/program.h"
#include "src/kernels/cuda/attention.h"
#include "src/kernels/cuda/constants.h"
#include "src/kernels/cuda/decode.h"
#include "src/kernels/cuda/delta.h"
#include "src/kernels/cuda/prefill.h"
#include "src/kernels/cuda/w8a8.h"
#include "src/model/gpu_weights.h"
#include "src/model/model.h"

namespace moray {

// kUnsupported: a family whose forward pass has not been seen to be right on a GPU.
Status check_gpu_family(const ModelConfig& config);
// kUnsupported: a dimension beyond what the kernels are made for.
Status check_gpu_limits(const ModelConfig& config);

cuda::Constants gpu_constants(const ModelConfig& config, const GpuFormats& formats,
                              const gpu::DeviceInfo& device);

// Programs a model of that config uses on that GPU, by the names of their sources.
std::vector<std::string> gpu_programs(const ModelConfig& config, const GpuFormats& formats,
                                      const cuda::Constants& constants);

struct GpuKernels {
  std::shared_ptr<const gpu::KernelSet> set;
  cuda::DecodeKernels decode;
  cuda::AttentionKernels attention;
  cuda::DeltaKernels delta;  // empty without delta layers
  cuda::PrefillKernels prefill;
  cuda::W8a8Kernels w8a8;  // empty unless has_w8a8
  bool has_w8a8 = false;   // FP8 weights whose shapes those kernels take
  gpu::Kernel read_speed;

  KvFormat kv() const { return attention.shape.kv_fp8 ? KvFormat::kFp8 : KvFormat::kBf16; }
};

// Shapes without kernels: enough to count the bytes of workspaces with.
GpuKernels gpu_kernel_shapes(const ModelConfig& config, const GpuFormats& formats,
                             const gpu::DeviceInfo& device);

Result<GpuKernels> build_gpu_kernels(const std::shared_ptr<gpu::Device>& device,
                                     const ModelConfig& config, const GpuFormats& formats,
                                     const gpu::CompileProgress& progress);

}  // namespace moray
