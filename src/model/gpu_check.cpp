#include "src/model/gpu_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/kernels/check/checks.h"

namespace moray {
namespace {

bool always(const GpuKernels&) {
  return true;
}
bool has_delta(const GpuKernels& kernels) {
  return kernels.constants.value_heads > 0;
}
// With a BF16 cache: over FP8 keys outputs follow the stored codes, for which there is no oracle
// here.
bool has_attention(const GpuKernels& kernels) {
  return kernels.constants.heads > 0 && !kernels.constants.kv_fp8;
}
bool has_w8a8(const GpuKernels& kernels) {
  return kernels.has_w8a8;
}

struct Checked {
  std::string_view name;  // as findings have it
  KernelGroup group;
  std::string_view kernels = name;  // as the catalogue has them, apart by spaces
};
struct KernelCheck {
  void (*run)(check::Checker&, const check::Subject&);
  bool (*is_of)(const GpuKernels&);
  std::vector<Checked> kernels;
};

// The table of checks: what runs, for which models, and what is lost with each kernel.
const std::vector<KernelCheck>& kernel_checks() {
  using enum KernelGroup;
  static const std::vector<KernelCheck> checks = {
      {check::check_embed_step, always, {{"embed_step", kSteps}}},
      {check::check_norm_project, always, {{"norm_project", kSteps, "norm_project_*"}}},
      {check::check_project_add, always, {{"project_add", kSteps, "project_add_*"}}},
      {check::check_experts_step,
       always,
       {{"norm_route", kSteps, "norm_route_*"},
        {"experts_gate_up", kSteps, "experts_gate_up_*"},
        {"experts_down", kSteps, "experts_down_*"}}},
      {check::check_head, always, {{"norm_head", kSteps, "norm_head_*"}, {"greedy_step", kSteps}}},
      {check::check_delta,
       has_delta,
       {{"delta_step", kSteps},
        {"delta_prepare", kBlocks, "delta_prepare delta_scan delta_finish"}}},
      {check::check_attention,
       has_attention,
       {{"attention_step", kSteps, "attention_step_*"},
        {"attention_rows", kBlocks},
        {"attention_prefill", kMmaAttention},
        {"attention_prefill_wgmma", kWgmmaAttention}}},
      {check::check_embed_rows, always, {{"embed_rows", kBlocks}}},
      {check::check_norm_rows, always, {{"norm_rows", kBlocks}}},
      {check::check_combine_rows, always, {{"combine_rows", kBlocks}}},
      {check::check_route_rows,
       always,
       {{"route_rows", kBlocks}, {"plan_tiles", kBlocks}, {"place_rows", kBlocks}}},
      {check::check_project_rows, always, {{"project_rows", kBlocks, "project_rows_*"}}},
      {check::check_experts_rows,
       always,
       {{"gate_up_rows", kBf16Experts, "gate_up_rows_*"},
        {"down_rows", kBf16Experts, "down_rows_*"}}},
      {check::check_quantised_rows,
       has_w8a8,
       {{"quantise_rows", kFp8Activations},
        {"norm_rows (codes)", kFp8Activations, "norm_rows"},
        {"gather_rows", kFp8Activations}}},
      {check::check_w8a8_dense, has_w8a8, {{"w8a8_dense", kFp8Activations, "w8a8_*"}}},
      {check::check_w8a8_experts,
       has_w8a8,
       {{"w8a8_gate_up", kFp8Activations, "w8a8_*"}, {"w8a8_down", kFp8Activations, "w8a8_*"}}},
  };
  return checks;
}

std::string names_of(const KernelCheck& check) {
  std::string names;
  for (const Checked& kernel : check.kernels) {
    names += (names.empty() ? "" : ", ") + std::string(kernel.name);
  }
  return names;
}

// The experts of a layer, which are all of a check's memory that counts, and the rest.
int64_t bytes_needed(const cuda::Constants& c) {
  const int64_t element = c.expert_fp8 ? 1 : 2;
  const int64_t expert = int64_t{3} * c.hidden * c.expert_dim * element;
  return c.experts * (expert + expert / 1024 + 4096) + (int64_t{256} << 20);
}

}  // namespace

GpuPaths choose_paths(std::span<const KernelFault> faults, bool has_fp8_activations,
                      bool has_wgmma_attention) {
  const auto is_good = [&](KernelGroup group) {
    return std::none_of(faults.begin(), faults.end(),
                        [&](const KernelFault& fault) { return fault.group == group; });
  };
  GpuPaths paths;
  paths.steps = is_good(KernelGroup::kSteps);
  paths.fp8_activations = has_fp8_activations && is_good(KernelGroup::kFp8Activations);
  paths.wgmma_attention = has_wgmma_attention && is_good(KernelGroup::kWgmmaAttention);
  paths.blocks = is_good(KernelGroup::kBlocks) &&
                 (paths.fp8_activations || is_good(KernelGroup::kBf16Experts)) &&
                 (paths.wgmma_attention || is_good(KernelGroup::kMmaAttention));
  return paths;
}

void keep_paths(const GpuPaths& paths, GpuKernels& kernels) {
  kernels.has_blocks = paths.blocks;
  kernels.has_w8a8 = paths.fp8_activations;
  if (!paths.wgmma_attention) kernels.attention.prefill_wgmma = {};
}

std::string describe(const KernelFault& fault, const GpuPaths& paths) {
  const char* instead = "nothing else is needed, it is not used";
  if (!paths.steps) {
    instead = "this GPU is not used";
  } else if (!paths.blocks) {
    instead = "prompts are read by the kernels of decode steps, 16 tokens at a time";
  } else if (fault.group == KernelGroup::kFp8Activations) {
    instead = "prompts are read with BF16 activations";
  } else if (fault.group == KernelGroup::kWgmmaAttention) {
    instead = "attention of prompts runs on mma.sync";
  }
  return fmt::format("kernel {} is wrong on this card, {}; {}", fault.kernel, fault.what, instead);
}

Result<std::vector<CheckedKernel>> check_gpu_kernels(const std::shared_ptr<gpu::Device>& device,
                                                     gpu::Stream& stream, const GpuKernels& kernels,
                                                     const check::Options& options) {
  const int64_t needed = bytes_needed(kernels.constants);
  if (const int64_t free = device->free_bytes(); free < needed) {
    return Status(StatusCode::kExhausted,
                  fmt::format("kernel check: found {} MiB of GPU memory free, expected {} MiB",
                              free >> 20, needed >> 20));
  }
  const check::Subject subject{.constants = kernels.constants,
                               .decode = kernels.decode,
                               .attention = kernels.attention,
                               .delta = kernels.delta,
                               .prefill = kernels.prefill,
                               .w8a8 = kernels.w8a8};
  check::Checker checker(device, stream, options);
  std::vector<CheckedKernel> checked;
  for (const KernelCheck& check : kernel_checks()) {
    if (!check.is_of(kernels)) continue;
    check.run(checker, subject);
    RETURN_IF_ERROR([&]() -> Status {
      const Status trouble = std::exchange(checker.trouble(), Status());
      if (trouble.ok()) return trouble;
      if (trouble.code() ==
          StatusCode::kUnsupported) {  // a guard, a counter: which of them is open
        for (const Checked& kernel : check.kernels) {
          checker.fail(kernel.name, names_of(check) + ": " + trouble.message());
        }
        return Status();
      }
      return Status(trouble.code(),
                    "kernel check of " + names_of(check) + ": " + trouble.message());
    }());
    for (const Checked& kernel : check.kernels) {
      const auto found = checker.findings().find(kernel.name);
      if (found != checker.findings().end()) checked.push_back({kernel.group, found->second});
    }
  }
  return checked;
}

std::vector<KernelFault> faults_of(std::span<const CheckedKernel> checked) {
  std::vector<KernelFault> faults;
  for (const CheckedKernel& kernel : checked) {
    const check::Finding& found = kernel.finding;
    if (found.is_good()) continue;
    faults.push_back(
        {kernel.group, found.kernel,
         fmt::format("off by {:.3g}, allowed {:.3g} ({})", found.error, found.bound, found.where)});
  }
  return faults;
}

std::vector<std::string_view> checked_kernel_names() {
  std::vector<std::string_view> names;
  for (const KernelCheck& check : kernel_checks()) {
    for (const Checked& kernel : check.kernels) {
      for (std::string_view rest = kernel.kernels; !rest.empty();) {
        const size_t end = std::min(rest.find(' '), rest.size());
        names.push_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
    }
  }
  return names;
}

}  // namespace moray
