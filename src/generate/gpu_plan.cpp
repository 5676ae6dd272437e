#include "src/generate/gpu_plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "src/generate/backend.h"
#include "src/generate/context_plan.h"
#include "src/model/blank_weights.h"
#include "src/model/gpu_state.h"
#include "src/model/gpu_workspace.h"

namespace moray {
namespace {

constexpr int64_t kWorkspaceShare = 8;

double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

Status no_room(int64_t free_bytes, int64_t weight_bytes) {
  return Status(StatusCode::kExhausted,
                fmt::format("cuda: found {:.0f} MiB of free device memory, expected more than the "
                            "{:.0f} MiB of the weights",
                            mebibytes(free_bytes), mebibytes(weight_bytes)));
}

}  // namespace

int64_t choose_block(const ModelConfig& config, const GpuKernels& kernels, int64_t requested,
                     int64_t room) {
  const auto round_up = [](int64_t tokens) {
    return (tokens + kDeltaChunk - 1) / kDeltaChunk * kDeltaChunk;
  };
  if (requested > 0) return round_up(requested);
  int64_t block = std::min<int64_t>(kBlockTokensMax, round_up(config.max_positions));
  while (block > kDeltaChunk &&
         GpuWorkspace::bytes_needed(config, kernels, block) > room / kWorkspaceShare) {
    block = round_up(block / 2);
  }
  return block;
}

Status check_gpu_room(const ModelConfig& config, HeadFormat head, int64_t free_bytes) {
  const int64_t weight_bytes = gpu_weights_bytes(blank_weights(config, head, nullptr));
  if (weight_bytes + kGpuReserveBytes <= free_bytes) return Status();
  return no_room(free_bytes, weight_bytes);
}

Result<GpuPlan> plan_gpu(const Weights& shapes, const GpuKernels& kernels,
                         const EngineOptions& options, int64_t free_bytes) {
  const ModelConfig& config = shapes.config;
  GpuPlan plan;
  plan.weight_bytes = gpu_weights_bytes(shapes);
  const int64_t room = free_bytes - kGpuReserveBytes - plan.weight_bytes;
  if (room <= 0) return no_room(free_bytes, plan.weight_bytes);
  plan.block_tokens = choose_block(config, kernels, options.block_tokens, room);
  plan.workspace_bytes = GpuWorkspace::bytes_needed(config, kernels, plan.block_tokens);
  ContextQuestion question;
  question.requested = options.context;
  question.max_positions = config.max_positions;
  question.available_bytes = free_bytes - kGpuReserveBytes;
  question.weight_bytes = plan.weight_bytes;
  question.fixed_bytes = plan.workspace_bytes;
  question.share_divisor = 1;  // there is one session
  question.state_bytes = [&](int64_t tokens) {
    return GpuState::bytes_needed(config, kernels.kv(), tokens);
  };
  ASSIGN_OR_RETURN(plan.context, plan_context(question));
  plan.state_bytes = GpuState::bytes_needed(config, kernels.kv(), plan.context);
  if (options.context == 0 && plan.context < config.max_positions) {
    plan.notes.push_back(
        fmt::format("context of {} tokens, not the model's {}: its state takes "
                    "what device memory is free",
                    plan.context, config.max_positions));
  }
  return plan;
}

}  // namespace moray
