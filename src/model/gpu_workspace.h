// The named device buffers of a GPU's forward passes: a decode step's and a prefill block's.
//
// Invariant: sized once; nothing here outlives a pass with meaning but `step` (whose position a
// greedy step advances) and the arrival counters (zero between kernels). One workspace serves one
// stream. With a null base the sizes are the same and the addresses mean nothing.
#pragma once

#include <memory>

#include "src/gpu/memory.h"
#include "src/kernels/cuda/decode_params.h"
#include "src/kernels/cuda/prefill_params.h"
#include "src/model/gpu_kernels.h"

namespace moray {

// Of a decode step of up to kStepTokensMax tokens.
struct GpuStepBuffers {
  cuda::Step* step;
  cuda::Bfloat16* residual;   // [16, H]
  float* mixed_in;            // [16, C] or [16, query and gate]
  float* z;                   // [16, nv dv] or keys
  float* b;                   // [16, nv] or values
  float* a;                   // [16, nv]
  cuda::Bfloat16* mixed_out;  // [16, nv dv] or [16, n d]
  cuda::RoutingBuffers routing;
  float* logits;                // [16, V]
  cuda::Candidate* candidates;  // [16, head_candidates()]
  int* chosen;                  // [16]
  float* partials;              // of attention
  unsigned* attention_arrivals;
  int* delta_arrivals;
  unsigned* banned;  // a bit a vocabulary row
  unsigned* sink;    // of read_speed
};

// Of a prefill block of up to block_tokens tokens (T). BF16 but where said.
struct GpuBlockBuffers {
  int* tokens;
  cuda::Bf16* residual;   // [T, H]
  cuda::Bf16* x;          // [T, H]
  cuda::Bf16* mixed_in;   // [T, C] or [T, query and gate]
  cuda::Bf16* z;          // [T, nv dv] or keys
  cuda::Bf16* v;          // values
  float* b;               // [T, nv]
  float* a;               // [T, nv]
  cuda::Bf16* mixed_out;  // [T, nv dv] or [T, n d]
  char* delta_workspace;
  float* router_logits;      // [T, E]
  float* shared_logits;      // [T]
  char* plan;                // expert_plan_at()
  cuda::Bf16* inner;         // [T top_k, I]
  cuda::Bf16* shared_inner;  // [T, Is]
  cuda::Bf16* expert_out;    // [T top_k, H]
  cuda::Bf16* shared_out;    // [T, H]
  // W8A8 only: codes and scales of the inputs of products.
  unsigned char* x_codes;
  float* x_scales;
  unsigned char* mixed_codes;
  float* mixed_scales;
  unsigned char* sorted_codes;
  float* sorted_scales;
  unsigned char* inner_codes;
  float* inner_scales;
  unsigned char* shared_codes;
  float* shared_scales;
};

struct GpuWorkspace {
  GpuStepBuffers step{};
  GpuBlockBuffers block{};
  int64_t block_tokens = 0;
  gpu::DeviceMemory memory;

  static int64_t bytes_needed(const ModelConfig& config, const GpuKernels& kernels,
                              int64_t block_tokens);
  // Also clears the counters. Errors: kExhausted, kIo.
  static Result<GpuWorkspace> create(const std::shared_ptr<gpu::Device>& device,
                                     gpu::Stream& stream, const ModelConfig& config,
                                     const GpuKernels& kernels, int64_t block_tokens);
};

}  // namespace moray
