// Whether this card computes what the kernels are meant to: each held against its oracle on small
// random inputs, and what runs instead of one that is wrong.
//
// This is what protects cards nobody here has. Invariant: a path is taken only if every kernel on
// it was right; where one was not, the slower path that does without it is taken and a line says
// which kernel, how wrong and what instead. Findings are remembered for a card, its driver and a
// set of kernels (gpu_check_record.h).
#pragma once

#include <string>
#include <vector>

#include "src/gpu/stream.h"
#include "src/kernels/check/checker.h"
#include "src/model/gpu_kernels.h"

namespace moray {

// Kernels that are lost together.
enum class KernelGroup {
  kSteps,           // decode steps: without them the CPU computes
  kBlocks,          // whatever a block of a prompt needs: without them it is read in steps
  kBf16Experts,     // experts of a block with BF16 activations, where FP8 ones are not used
  kFp8Activations,  // W8A8: without them blocks have BF16 activations
  kMmaAttention,    // attention of a block by mma.sync, where warpgroup products are not used
  kWgmmaAttention,  // on warpgroup products: without it by mma.sync
};

struct KernelFault {
  KernelGroup group;
  std::string kernel;
  std::string what;  // "off by 3.1, allowed 0.02 (an output, unit 17: found 3, expected -0.1)"
};

// What may run. All of it where nothing was found.
struct GpuPaths {
  bool steps = true;
  bool blocks = true;
  bool fp8_activations = true;
  bool wgmma_attention = true;
};
// A pure function: what the faults leave of what the model's kernels offer.
GpuPaths choose_paths(std::span<const KernelFault> faults, bool has_fp8_activations,
                      bool has_wgmma_attention);
// Takes from `kernels` what may not run.
void keep_paths(const GpuPaths& paths, GpuKernels& kernels);
// "kernel w8a8_down is wrong on this card, off by ...; prompts are read with BF16 activations".
std::string describe(const KernelFault& fault, const GpuPaths& paths);

// One finding a kernel, in the order of the table of checks, those of other models left out; its
// group is what is lost with it.
struct CheckedKernel {
  KernelGroup group;
  check::Finding finding;
};
// Runs every check of the model's kernels. At the first start well under two seconds; at length
// some tens. Needs device memory for the experts of one layer. Errors: kExhausted without it, kIo
// when the device is lost (the message names the kernels).
Result<std::vector<CheckedKernel>> check_gpu_kernels(const std::shared_ptr<gpu::Device>& device,
                                                     gpu::Stream& stream, const GpuKernels& kernels,
                                                     const check::Options& options);
std::vector<KernelFault> faults_of(std::span<const CheckedKernel> checked);

// Names of kernels, as catalogue.h lists them, that some check covers.
std::vector<std::string_view> checked_kernel_names();

}  // namespace moray
