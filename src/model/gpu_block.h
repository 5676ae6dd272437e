// A prefill block as a list of launches: many tokens of one sequence at once.
//
// Invariant: functions only enqueue. Products take FP8 activations (W8A8) where the model declares
// them and `use_w8a8` says so, else BF16; the rest of the numbers is the same either way. The
// state ends as decode steps expect it.
#pragma once

#include "src/model/gpu_step.h"

namespace moray {

class GpuBlock {
 public:
  GpuBlock(const GpuModel& model, gpu::Stream& stream, const GpuBlockBuffers& buffers,
           const GpuStep& step, const GpuState& state, bool use_w8a8)
      : model_(model),
        stream_(stream),
        buffers_(buffers),
        step_(step),
        state_(state),
        use_w8a8_(use_w8a8 && model.kernels.has_w8a8) {}

  // Of the ids in buffers.tokens, the first at the state's position. The caches see all tokens;
  // of the residual stream only the last `rows_kept` rows are finished by the last layer (their
  // place in buffers.residual stays).
  void run(int tokens, int rows_kept) const;

 private:
  cuda::QuantisedRows rows_of(unsigned char* codes, float* scales, int rows, int cols) const;
  void norm(const float* weight, int tokens) const;
  void project_inputs(const GpuLayer& layer, int tokens) const;
  void mix(const GpuLayer& layer, size_t cache, int tokens) const;
  void project_out(const GpuLayer& layer, int tokens) const;
  cuda::ExpertPlan route(const GpuLayer& layer, int tokens) const;
  void add_experts(const GpuLayer& layer, int tokens) const;
  void run_experts(const GpuLayer& layer, const cuda::ExpertPlan& plan, int tokens) const;
  void run_experts_w8a8(const GpuLayer& layer, const cuda::ExpertPlan& plan, int tokens) const;
  // The rest of the last layer for a few rows, by the decode kernels.
  void finish_rows(const GpuLayer& layer, int tokens, int rows) const;

  const GpuModel& model_;
  gpu::Stream& stream_;
  const GpuBlockBuffers& buffers_;
  const GpuStep& step_;
  const GpuState& state_;
  bool use_w8a8_;
};

}  // namespace moray
