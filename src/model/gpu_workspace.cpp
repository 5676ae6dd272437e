#include "src/model/gpu_workspace.h"

#include <algorithm>

#include "src/gpu/stream.h"

namespace moray {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kStepTokens = cuda::kStepTokensMax;
constexpr int kSmallestTileRows = 32;  // of an expert plan: the most tiles

class Carver {
 public:
  explicit Carver(char* base) : base_(base) {}
  template <typename Element>
  void take(Element*& pointer, int64_t count) {
    pointer = reinterpret_cast<Element*>(base_ + used_);
    const int64_t bytes = count * static_cast<int64_t>(sizeof(Element));
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

int64_t query_width(const ModelConfig& c) {
  return c.num_heads * c.head_dim * (c.attention_output_gate ? 2 : 1);
}
int64_t key_width(const ModelConfig& c) {
  return c.num_kv_heads * c.head_dim;
}
int64_t mixed_width(const ModelConfig& c) {
  return std::max(c.gdn_value_total(), c.num_heads * c.head_dim);
}

void carve_step(const ModelConfig& c, const GpuKernels& kernels, Carver& carver,
                GpuStepBuffers& s) {
  const int64_t t = kStepTokens;
  carver.take(s.step, 1);
  carver.take(s.residual, t * c.hidden);
  carver.take(s.mixed_in, t * std::max(c.gdn_conv_channels(), query_width(c)));
  carver.take(s.z, t * std::max(c.gdn_value_total(), key_width(c)));
  carver.take(s.b, t * std::max(c.gdn_value_heads, key_width(c)));
  carver.take(s.a, t * c.gdn_value_heads);
  carver.take(s.mixed_out, t * mixed_width(c));
  cuda::RoutingBuffers& r = s.routing;
  carver.take(r.x, t * c.hidden);
  carver.take(r.logits, t * c.num_experts);
  carver.take(r.shared_logit, t);
  carver.take(r.inner, t * (c.top_k + 1) *
                           cuda::inner_stride(static_cast<int>(c.expert_dim),
                                              static_cast<int>(c.shared_expert_dim)));
  carver.take(r.expert_ids, t * c.top_k);
  carver.take(r.expert_weights, t * c.top_k);
  carver.take(r.shared_weight, t);
  carver.take(s.logits, t * c.vocab_rows);
  carver.take(s.candidates, t * cuda::head_candidates(kernels.decode));
  carver.take(s.chosen, t);
  const cuda::AttentionShape& attention = kernels.attention.shape;
  carver.take(s.partials, cuda::attention_step_workspace_bytes(attention, kStepTokens) / 4);
  carver.take(s.attention_arrivals, cuda::attention_arrivals_bytes(attention) / 4);
  if (c.gdn_value_heads > 0) {
    carver.take(s.delta_arrivals, cuda::delta_arrivals_bytes(kernels.delta.shape) / 4);
  }
  carver.take(s.banned, (c.vocab_rows + 31) / 32);
  carver.take(s.sink, 1);
}

// Codes [rows, cols] and their scales.
void carve_codes(Carver& carver, int64_t rows, int64_t cols, unsigned char*& codes,
                 float*& scales) {
  carver.take(codes, rows * cols);
  carver.take(scales, (rows + 3) / 4 * 4 * (cols / kScaleBlock));
}

void carve_block(const ModelConfig& c, const GpuKernels& kernels, int64_t t, Carver& carver,
                 GpuBlockBuffers& b) {
  const int64_t pairs = t * c.top_k;
  carver.take(b.tokens, t);
  carver.take(b.residual, t * c.hidden);
  carver.take(b.x, t * c.hidden);
  carver.take(b.mixed_in, t * std::max(c.gdn_conv_channels(), query_width(c)));
  carver.take(b.z, t * std::max(c.gdn_value_total(), key_width(c)));
  carver.take(b.v, t * key_width(c));
  carver.take(b.b, t * c.gdn_value_heads);
  carver.take(b.a, t * c.gdn_value_heads);
  carver.take(b.mixed_out, t * mixed_width(c));
  if (c.gdn_value_heads > 0) {
    carver.take(b.delta_workspace, cuda::delta_prefill_workspace_bytes(kernels.delta.shape, t));
  }
  carver.take(b.router_logits, t * c.num_experts);
  carver.take(b.shared_logits, t);
  carver.take(b.plan, cuda::expert_plan_bytes(kernels.prefill.shape, static_cast<int>(t),
                                              kSmallestTileRows));
  carver.take(b.expert_out, pairs * c.hidden);
  carver.take(b.shared_out, t * c.hidden);
  carver.take(b.inner, pairs * ((c.expert_dim + 7) / 8 * 8));
  carver.take(b.shared_inner, t * ((c.shared_expert_dim + 7) / 8 * 8));
  if (!kernels.has_w8a8) return;
  carve_codes(carver, t, c.hidden, b.x_codes, b.x_scales);
  carve_codes(carver, t, mixed_width(c), b.mixed_codes, b.mixed_scales);
  carve_codes(carver, pairs, c.hidden, b.sorted_codes, b.sorted_scales);
  carve_codes(carver, pairs, c.expert_dim, b.inner_codes, b.inner_scales);
  carve_codes(carver, t, c.shared_expert_dim, b.shared_codes, b.shared_scales);
}

}  // namespace

int64_t GpuWorkspace::bytes_needed(const ModelConfig& config, const GpuKernels& kernels,
                                   int64_t block_tokens) {
  GpuWorkspace sizes;
  Carver carver(nullptr);
  carve_step(config, kernels, carver, sizes.step);
  carve_block(config, kernels, block_tokens, carver, sizes.block);
  return carver.used();
}

Result<GpuWorkspace> GpuWorkspace::create(const std::shared_ptr<gpu::Device>& device,
                                          gpu::Stream& stream, const ModelConfig& config,
                                          const GpuKernels& kernels, int64_t block_tokens) {
  GpuWorkspace workspace;
  workspace.block_tokens = block_tokens;
  const int64_t bytes = bytes_needed(config, kernels, block_tokens);
  ASSIGN_OR_RETURN(workspace.memory, gpu::DeviceMemory::allocate(device, bytes));
  Carver carver(workspace.memory.data());
  carve_step(config, kernels, carver, workspace.step);
  carve_block(config, kernels, block_tokens, carver, workspace.block);
  gpu::fill(stream, workspace.memory.data(), 0, bytes);
  RETURN_IF_ERROR(stream.synchronize());
  return workspace;
}

}  // namespace moray
