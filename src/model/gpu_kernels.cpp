#include "src/model/gpu_kernels.h"

#include <fmt/core.h>

#include <cstdint>

#include "src/kernels/cuda/sources.h"
#include "src/model/rope.h"

namespace moray {
namespace {

struct Limit {
  const char* name;
  int64_t found;
  int64_t most;
  int64_t multiple;
};

bool has_delta(const ModelConfig& c) {
  return c.count_layers(LayerKind::kGatedDelta) > 0;
}

// Every matrix that W8A8 kernels would meet has whole blocks of 128 columns.
bool fits_w8a8(const ModelConfig& c, const GpuFormats& formats) {
  const bool all_fp8 = formats.projections_fp8 && formats.experts_fp8 &&
                       (formats.shared_fp8 || c.shared_expert_dim == 0);
  for (const int64_t size :
       {c.hidden, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.gdn_value_total(),
        c.gdn_conv_channels(), c.expert_dim, c.shared_expert_dim}) {
    if (size % kScaleBlock != 0) return false;
  }
  return all_fp8;
}

int to_int(int64_t value) {
  return static_cast<int>(value);
}

cuda::AttentionShape attention_shape(const cuda::Constants& k) {
  return {.heads = k.heads,
          .kv_heads = k.kv_heads,
          .head_dim = k.head_dim,
          .has_gate = k.has_gate,
          .multiprocessors = k.multiprocessors,
          .arch = k.arch,
          .kv_fp8 = k.kv_fp8};
}

}  // namespace

Status check_gpu_family(const ModelConfig& c) {
  if (c.family == Family::kQwen3_5Moe) return Status();
  return Status(
      StatusCode::kUnsupported,
      fmt::format("cuda: found a {} model, expected qwen3_5_moe, the one family proven on "
                  "a GPU",
                  family_name(c.family)));
}

Status check_gpu_limits(const ModelConfig& c) {
  const Limit limits[] = {
      {"hidden size", c.hidden, cuda::kDecodeColumnsMax, 8},
      {"attention width", c.num_heads * c.head_dim, cuda::kDecodeColumnsMax, 8},
      {"delta-net width", c.gdn_value_total(), cuda::kDecodeColumnsMax, 8},
      {"expert width", c.expert_dim, cuda::kDecodeColumnsMax, 8},
      {"shared expert width", c.shared_expert_dim, cuda::kDecodeColumnsMax, 8},
      {"head size", c.head_dim, 256, 32},
      {"delta-net key size", c.gdn_key_dim, 128, 4},
      {"delta-net value size", c.gdn_value_dim, 128, 4},
      {"number of convolution taps", c.gdn_conv_taps, 8, 1},
      {"number of experts", c.num_experts, cuda::kRoutedExpertsMax, 1},
      {"number of experts a token", c.top_k, cuda::kTopKMax, 1},
  };
  for (const Limit& limit : limits) {
    if (limit.found <= limit.most && limit.found % limit.multiple == 0) continue;
    return Status(StatusCode::kUnsupported,
                  fmt::format("cuda: found a {} of {}, expected at most {}, a multiple of {}",
                              limit.name, limit.found, limit.most, limit.multiple));
  }
  return Status();
}

cuda::Constants gpu_constants(const ModelConfig& c, const GpuFormats& formats,
                              const gpu::DeviceInfo& device) {
  cuda::Constants k;
  k.arch = device.arch();
  k.multiprocessors = device.multiprocessors;
  k.hidden = to_int(c.hidden);
  k.vocab_rows = to_int(c.vocab_rows);
  k.layers = to_int(c.num_layers);
  k.norm_eps = static_cast<float>(c.rms_norm_eps);
  k.zero_centred_norms = c.zero_centred_norms;
  k.heads = to_int(c.num_heads);
  k.kv_heads = to_int(c.num_kv_heads);
  k.head_dim = to_int(c.head_dim);
  k.rotary_dim = to_int(c.rotary_dim);
  k.has_gate = c.attention_output_gate;
  k.rope_scale = make_rope(c).scale;
  k.key_heads = to_int(c.gdn_key_heads);
  k.value_heads = to_int(c.gdn_value_heads);
  k.key_dim = to_int(c.gdn_key_dim);
  k.value_dim = to_int(c.gdn_value_dim);
  k.conv_taps = to_int(c.gdn_conv_taps);
  k.experts = to_int(c.num_experts);
  k.top_k = to_int(c.top_k);
  k.expert_dim = to_int(c.expert_dim);
  k.shared_dim = to_int(c.shared_expert_dim);
  k.normalise_top_k = c.normalise_top_k;
  k.projection_fp8 = formats.projections_fp8;
  k.expert_fp8 = formats.experts_fp8;
  k.shared_fp8 = formats.shared_fp8;
  k.head_fp8 = formats.head_fp8;
  k.kv_fp8 = formats.kv_fp8;
  return k;
}

std::vector<std::string> gpu_programs(const ModelConfig& config, const GpuFormats& formats,
                                      const cuda::Constants& k) {
  std::vector<std::string> programs = {
      "decode_project.cu",  "decode_experts.cu", "decode_head.cu",
      "prefill_rows.cu",    "prefill_route.cu",  "prefill_project.cu",
      "prefill_experts.cu", "read_speed.cu",     "random_fill.cu"};
  for (std::string& program : cuda::attention_programs(attention_shape(k))) {
    programs.push_back(std::move(program));
  }
  if (has_delta(config)) {
    programs.insert(programs.end(),
                    {"delta_step.cu", "delta_prepare.cu", "delta_scan.cu", "delta_finish.cu"});
  }
  if (fits_w8a8(config, formats)) {
    programs.insert(programs.end(), {"w8a8_dense.cu", "w8a8_experts.cu"});
  }
  return programs;
}

GpuKernels gpu_kernel_shapes(const ModelConfig& c, const GpuFormats& formats,
                             const gpu::DeviceInfo& device) {
  const cuda::Constants k = gpu_constants(c, formats, device);
  GpuKernels kernels;
  kernels.decode.shape = {.hidden = k.hidden,
                          .experts = k.experts,
                          .top_k = k.top_k,
                          .expert_dim = k.expert_dim,
                          .shared_dim = k.shared_dim,
                          .multiprocessors = k.multiprocessors,
                          .arch = k.arch};
  kernels.attention.shape = attention_shape(k);
  kernels.delta.shape = {.key_heads = k.key_heads,
                         .value_heads = k.value_heads,
                         .key_dim = k.key_dim,
                         .value_dim = k.value_dim,
                         .taps = k.conv_taps,
                         .arch = k.arch};
  kernels.prefill.shape = {.hidden = k.hidden,
                           .experts = k.experts,
                           .top_k = k.top_k,
                           .expert_dim = k.expert_dim,
                           .shared_dim = k.shared_dim,
                           .multiprocessors = k.multiprocessors};
  kernels.has_w8a8 = fits_w8a8(c, formats);
  return kernels;
}

Result<GpuKernels> build_gpu_kernels(const std::shared_ptr<gpu::Device>& device,
                                     const ModelConfig& c, const GpuFormats& formats,
                                     const gpu::CompileProgress& progress) {
  RETURN_IF_ERROR(check_gpu_limits(c));
  const gpu::DeviceInfo& info = device->info();
  const cuda::Constants k = gpu_constants(c, formats, info);
  gpu::BuildRequest request;
  request.sources = cuda::sources();
  request.programs = gpu_programs(c, formats, k);
  request.constants = cuda::constants_text(k);
  GpuKernels kernels = gpu_kernel_shapes(c, formats, info);
  ASSIGN_OR_RETURN(kernels.set, gpu::KernelSet::build(device, request, progress));
  const gpu::KernelSet& set = *kernels.set;
  kernels.decode = cuda::find_decode_kernels(set, kernels.decode.shape);
  kernels.attention = cuda::AttentionKernels::find(set, kernels.attention.shape);
  if (has_delta(c)) kernels.delta = cuda::DeltaKernels::find(set, kernels.delta.shape);
  kernels.prefill = cuda::find_prefill_kernels(set, kernels.prefill.shape);
  if (kernels.has_w8a8) {
    kernels.w8a8 = cuda::find_w8a8_kernels(set, k.arch, k.multiprocessors);
  }
  kernels.read_speed = set.find("read_speed");
  return kernels;
}

}  // namespace moray
