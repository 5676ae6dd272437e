// W8A8 products of a prefill block: E4M3 activations times E4M3 weights on the tensor cores.
//
//   y[t, n] = sum_s xs[t, s] ws[n / 128, s] sum_k x[t, k] w[n, k],  k in the 128 columns of slice s
// with x, w the stored codes and xs, ws their FP32 scales. The inner sum is the tensor core's, with
// FP32 accumulators (on sm_90 the unit keeps about 13 fraction bits of the largest addend, which is
// why no sum in it is longer than a slice); everything outside it is FP32, slices in order. So an
// element has one order of summation, whatever else the block holds.
//
// wgmma fed by bulk copies on sm_90a, e4m3 mma.sync on sm_89, its block-scaled form with unit
// scales on sm_120a; the same sums but for the width inside the unit. For checkpoints that declare
// dynamic activations. Who quantises, sorts and reduces is in prefill.h; shapes that supports()
// refuses take the kernels there.
#pragma once

#include "src/gpu/launch.h"
#include "src/kernels/cuda/w8a8_params.h"

namespace moray::gpu {
class KernelSet;
class Stream;
}  // namespace moray::gpu

namespace moray::cuda {

struct W8a8Kernels {
  int arch = 0;  // 89, 90 or 120
  int multiprocessors = 0;
  gpu::Kernel dense, gate_up, down;
};
// The programs that hold them: "w8a8_dense.cu" and "w8a8_experts.cu".
W8a8Kernels find_w8a8_kernels(const gpu::KernelSet& kernels, int arch, int multiprocessors);

// E4M3, columns a multiple of 128, rows of 8, 16-byte aligned rows.
bool w8a8_supports(const Matrix& weight);
// E4M3, width and hidden multiples of 128, every matrix of a record 16-byte aligned.
bool w8a8_supports(const ExpertRecords& experts, int hidden);

// Each enqueues one kernel and neither allocates nor blocks; the maps in the parameters are filled
// here (about a microsecond of host time each, sm_90 only). Zero tokens do nothing. CHECKed: the
// shapes, alignments and outputs that w8a8_params.h states.
//
// 2 tokens N K FLOP over all targets. Reads codes once from memory, writes the outputs.
void w8a8_dense(gpu::Stream& stream, const W8a8Kernels& kernels, const W8a8Dense& params);
// 4 rows I H FLOP. With tiles, their number is read on the device and params.tokens is not used.
void w8a8_gate_up(gpu::Stream& stream, const W8a8Kernels& kernels, const W8a8GateUp& params);
// 2 rows I H FLOP.
void w8a8_down(gpu::Stream& stream, const W8a8Kernels& kernels, const W8a8Down& params);

}  // namespace moray::cuda
