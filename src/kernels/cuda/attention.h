// Full attention on the GPU: one kernel a layer for a decode step, two for a prefill block.
//
// Invariant: a token's result depends on the sequence before it and on nothing else in the step:
// bits are equal for 1..16 tokens at once. Formula and shapes as AttentionArgs (src/kernels/ops.h)
// under Precision::kBfloat16: queries, keys and values are rounded to BF16 once, scores, softmax
// and sums are FP32, outputs are BF16. Norm statistics are FP32, where the oracle's are double.
// Softmax weights meet the values as BF16 in prefill (2^-9 of a weight), as two BF16 parts in a
// step (2^-17). With an FP8 cache keys and values are quantised as they are appended, the token's
// own included, and widened without loss; prefill rounds code times scale to BF16.
//
// What no token has written is never read. A NaN in a token's key or value reaches the other tokens
// of the same call that share a tile with it, also earlier ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/gpu/launch.h"
#include "src/kernels/cuda/attention_params.h"

namespace moray::gpu {
class KernelSet;
class Stream;
}  // namespace moray::gpu

namespace moray::cuda {

// The dimensions the kernels were compiled for, as the launchers need them.
struct AttentionShape {
  int heads, kv_heads, head_dim;  // head_dim 32, 64, 128 or 256
  bool has_gate;
  int multiprocessors;
  int arch;  // 89, 90 or 120
  bool kv_fp8 = false;
};

struct AttentionKernels {
  gpu::Kernel step_narrow;    // up to 8 query columns (tokens * heads / kv_heads) a pass
  gpu::Kernel step_pair;      // up to 16
  gpu::Kernel step_wide;      // up to 32
  gpu::Kernel rows;           // prefill: norm, rotate, append
  gpu::Kernel prefill;        // prefill: softmax(q k) v, times the gate, by mma.sync
  gpu::Kernel unpack;         // prefill with an FP8 cache: its rows as BF16
  gpu::Kernel prefill_wgmma;  // the same on warpgroup products; empty where there is none
  AttentionShape shape;

  // Takes prefill_wgmma if `kernels` holds it.
  static AttentionKernels find(const gpu::KernelSet& kernels, const AttentionShape& shape);
};

// The programs to build for a shape: attention_step.cu, attention_prefill.cu and, for sm_90 and a
// head_dim of 128 or 256, attention_prefill_wgmma.cu.
std::vector<std::string> attention_programs(const AttentionShape& shape);

// Bytes of AttentionStepParams::partials for steps of up to `tokens`, and of `arrivals` (to be
// cleared once); one of each serves all layers of a stream.
int64_t attention_step_workspace_bytes(const AttentionShape& shape, int tokens);
int64_t attention_arrivals_bytes(const AttentionShape& shape);

// Appends k and v of Step.count tokens at Step.position and attends. The grid is fixed by the shape
// and by `tokens` (>= Step.count, which chooses the kernel), so that it may be captured; lengths
// come from device memory. `programmatic`: may start while the kernel before it drains.
// Cost: 4 * kv_heads * head_dim bytes (BF16) read per cached position, for every 4 tokens of a
// group of 8 heads once.
void attention_step(gpu::Stream& stream, const AttentionKernels& kernels, int tokens,
                    const AttentionStepParams& params, bool programmatic);

// Norms, rotates and appends a block of tokens, then attends causally: 4 * heads * head_dim FLOP
// for every pair of a query and a key at or before it. An FP8 cache is first unpacked to BF16 up to
// the block's end: 6 * kv_heads * head_dim bytes moved a position, little beside the products.
void attention_prefill(gpu::Stream& stream, const AttentionKernels& kernels,
                       const AttentionPrefillParams& params);

}  // namespace moray::cuda
