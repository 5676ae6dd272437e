// Where the bytes of a GPU's memory go, decided before anything large is allocated.
//
// Invariant: a plan that was accepted fits what was free, and a refusal says in numbers what was
// asked, what there is and what would fit. The counts come from shapes alone; weights() is, to the
// byte, what the upload allocates.
#pragma once

#include <string>
#include <vector>

#include "moray/engine.h"
#include "src/model/gpu_kernels.h"
#include "src/model/weights.h"

namespace moray {

struct GpuPlan {
  int64_t context = 0;       // tokens of the one session
  int64_t block_tokens = 0;  // of a prefill pass
  int64_t weight_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t state_bytes = 0;
  std::vector<std::string> notes;

  int64_t total_bytes() const { return weight_bytes + workspace_bytes + state_bytes; }
};

// Left free: the driver's own needs for code, graphs and printing, and other programs' windows.
inline constexpr int64_t kGpuReserveBytes = int64_t{256} << 20;

// kExhausted when the weights of such a model alone are more than `free_bytes`; asked before the
// checkpoint is read and kernels are compiled.
Status check_gpu_room(const ModelConfig& config, HeadFormat head, int64_t free_bytes);

// Tokens of a prefill block: `requested` if not 0, rounded up to the grid of 64, else the largest
// of 8192, 4096, ... 64 whose buffers take at most an eighth of `room` bytes.
int64_t choose_block(const ModelConfig& config, const GpuKernels& kernels, int64_t requested,
                     int64_t room);

// Context: what was asked for, else the model's own if the state fits in what weights and workspace
// leave, less (with a note) if not. Block: choose_block() of what the weights leave. Errors:
// kInvalidArgument, kExhausted.
Result<GpuPlan> plan_gpu(const Weights& shapes, const GpuKernels& kernels,
                         const EngineOptions& options, int64_t free_bytes);

}  // namespace moray
