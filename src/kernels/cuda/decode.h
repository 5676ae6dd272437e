// A decode step's matrix products (1..16 tokens): what to launch, and what each launch computes.
//
// Every kernel reads each weight once whatever the number of tokens, and sums an output element in
// one order that depends on the shapes alone: two chains of products in the tensor cores for each
// 128 bytes of a row, added; those in order within a warp's slice; slices in order; experts in slot
// order. No atomics, no counters: scratch needs no clearing.
//
// Numbers: activations BF16, products exact, sums FP32 (ops.h under Precision::kBfloat16). FP8
// weights meet activations in F16: a vector is multiplied by the power of two that brings its
// largest magnitude to [2^14, 2^15], which is exact for all within 2^-29 of it and errs by at most
// 2^-40 of it below.
//
// Limits, CHECKed: 1..kStepTokensMax tokens; at most 4096 columns a matrix, a multiple of 8;
// formats kFp8 and kBf16; at most 512 experts and 16 a token. Activations are dense [tokens, width]
// BF16 arrays, 16-byte aligned.
//
// Order in a graph: norm_route, experts_gate_up and experts_down must follow one another with
// nothing between, because experts_down reads the routing of norm_route before it waits for
// experts_gate_up. All are captured on one stream; none allocates or blocks.
#pragma once

#include "src/gpu/launch.h"
#include "src/kernels/cuda/decode_params.h"

namespace moray::gpu {
class KernelSet;
class Stream;
}  // namespace moray::gpu

namespace moray::cuda {

// The model's sizes that shape a launch; 0 where it lacks a part. Equal to the constants the
// kernels were compiled with.
struct DecodeShape {
  int hidden = 0;
  int experts = 0, top_k = 0, expert_dim = 0, shared_dim = 0;
  int multiprocessors = 0;
  int arch = 0;  // 89, 90 or 120
};

// The same computation compiled for one token, up to 8 and up to 16; a token's bits do not differ.
struct ByTokens {
  gpu::Kernel one, up_to_8, up_to_16;
  const gpu::Kernel& of(int tokens) const {
    return tokens == 1 ? one : tokens <= 8 ? up_to_8 : up_to_16;
  }
};
struct DecodeKernels {
  DecodeShape shape;
  gpu::Kernel embed_step, greedy_step;
  ByTokens norm_project, project_add, norm_route, experts_gate_up, experts_down, norm_head;
};
// The programs that hold them: "decode_project.cu", "decode_experts.cu", "decode_head.cu".
DecodeKernels find_decode_kernels(const gpu::KernelSet& kernels, const DecodeShape& shape);

// residual[t, :] = row step->tokens[t] of table (BF16), for t < params.tokens. Ids outside the
// table are taken as 0.
void embed_step(gpu::Stream& stream, const DecodeKernels& kernels, const EmbedParams& params);

// y_i[t, :] = W_i round(norm(residual[t, :])) for up to four matrices of any format; FP32 out.
// norm: x * rsqrt(mean x^2 + eps), then (1 + w) or, for kZeroCentredNorms false, w (ops.h RmsNorm).
void norm_project(gpu::Stream& stream, const DecodeKernels& kernels,
                  const NormProjectParams& params);

// residual[t, :] = round(residual[t, :] + W x[t, :]); W of the format that kProjectionFp8 says.
void project_add(gpu::Stream& stream, const DecodeKernels& kernels, const ProjectAddParams& params);

// x[t, :] = round(norm(residual[t, :])); logits = W_router x; shared_logit = W_shared_gate x; and
// the shared expert's inner = round(silu(gate x) * (up x)).
void norm_route(gpu::Stream& stream, const DecodeKernels& kernels, const NormRouteParams& params);

// Chooses the top_k experts of each token (larger logit first; ties: lower id; NaN last) and
// computes their inner = round(silu(gate x) * (up x)), each distinct expert read once. Also writes
// expert_ids, expert_weights and shared_weight, for whoever wants to see them: no kernel reads
// them.
void experts_gate_up(gpu::Stream& stream, const DecodeKernels& kernels,
                     const ExpertsParams& params);

// residual[t, :] = round(residual[t, :] + sum over slots w_slot down(inner) + s
// down_shared(inner)), with w = softmax(logits) of the chosen, divided by their sum if
// kNormaliseTopK, and s = sigmoid(shared_logit).
void experts_down(gpu::Stream& stream, const DecodeKernels& kernels, const ExpertsParams& params);

// logits[r, :] = W round(norm(residual[tokens - rows + r, :])) for r < rows, FP32, and per row the
// largest sampleable logit of each block of the grid (candidates), for greedy_step.
void norm_head(gpu::Stream& stream, const DecodeKernels& kernels, const NormHeadParams& params);
// Blocks of norm_head's grid, so Candidates a row; depends on the multiprocessors alone.
int head_candidates(const DecodeKernels& kernels);

// chosen[r] = the sampleable id of the largest finite logit of row r (ties: lower id), or -1 where
// there is none, which a caller takes as an error of the model. If `step` is given, then the next
// step is prepared: position += count, count = 1, tokens[0] = chosen[rows - 1]; and if `ring` is
// given, its 64-bit entry (position % ring_entries), with the new position, becomes
// (position << 32 | token as 32 bits), visible to a host that polls it.
void greedy_step(gpu::Stream& stream, const DecodeKernels& kernels, const GreedyParams& params);

}  // namespace moray::cuda
