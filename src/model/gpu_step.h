// A decode step as a list of launches: the stages of a layer by name, and the whole.
//
// Invariant: each function only enqueues on the stream, reads positions and tokens from
// buffers.step in device memory, and gives the same bits for a token whatever `tokens` is. So any
// of them may be captured into a graph and replayed.
#pragma once

#include "src/gpu/stream.h"
#include "src/model/gpu_kernels.h"
#include "src/model/gpu_state.h"
#include "src/model/gpu_workspace.h"

namespace moray {

// A model on a GPU, ready to run: shared by whatever runs it.
struct GpuModel {
  std::shared_ptr<gpu::Device> device;
  ModelConfig config;
  GpuKernels kernels;
  GpuWeights weights;
};

class GpuStep {
 public:
  GpuStep(const GpuModel& model, gpu::Stream& stream, const GpuStepBuffers& buffers,
          const GpuState& state)
      : model_(model), stream_(stream), buffers_(buffers), state_(state) {}

  // From the tokens in `step` to the residual stream after the last layer.
  void embed(int tokens) const;
  void layers(int tokens) const;

  // One layer; `cache` is its index among the layers of its kind.
  void project_inputs(const GpuLayer& layer, int tokens) const;
  void mix(const GpuLayer& layer, size_t cache, int tokens) const;
  void project_out(const GpuLayer& layer, const cuda::Bfloat16* mixed, cuda::Bfloat16* residual,
                   int tokens) const;
  void route(const GpuLayer& layer, const cuda::Bfloat16* residual, int tokens) const;
  void gate_up(const GpuLayer& layer, cuda::Bfloat16* residual, int tokens) const;
  void down(const GpuLayer& layer, cuda::Bfloat16* residual, int tokens) const;
  // The three above: residual += experts(norm(residual)).
  void add_experts(const GpuLayer& layer, cuda::Bfloat16* residual, int tokens) const;

  // Logits of the last `rows` of `tokens` rows of a residual stream to buffers.logits.
  void head(const cuda::Bfloat16* residual, int tokens, int rows,
            const cuda::Sampleable& sampleable) const;
  // The likeliest token of the head's last row becomes the next step's, and goes to the ring.
  void pick(const cuda::Sampleable& sampleable, unsigned long long* ring, int ring_entries) const;

 private:
  const GpuModel& model_;
  gpu::Stream& stream_;
  const GpuStepBuffers& buffers_;
  const GpuState& state_;
};

}  // namespace moray
