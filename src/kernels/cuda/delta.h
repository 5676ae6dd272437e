// The gated delta net on the GPU: one kernel a layer for a decode step, three for a prefill block.
//
// Formula, state and its absolute grid of 64 positions as GdnArgs (src/kernels/ops.h) under
// Precision::kBfloat16. Invariant: a step leaves a token's output and the state bit-equal however
// a sequence is split into steps of 1..16 tokens. Prefill ends in the state that the next step or
// block expects, wherever it starts and ends, but sums in another order and rounds operands of its
// products to F16 (unit roundoff 2^-11, an eighth of the roundoff of its BF16 inputs).
//
// A state may be set back within its open chunk by lowering the position (ops.h), on the device as
// well. Key dimensions up to 128, value dimensions up to 128, both multiples of 4; up to 8 taps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/gpu/launch.h"
#include "src/kernels/cuda/delta_params.h"

namespace moray::gpu {
class KernelSet;
class Stream;
}  // namespace moray::gpu

namespace moray::cuda {

// The dimensions the kernels were compiled for, as the launchers need them.
struct DeltaShape {
  int key_heads, value_heads, key_dim, value_dim, taps;
  int arch;  // 89, 90 or 120

  int channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

// Sources to compile, for a model that has a delta net.
std::vector<std::string> delta_programs();

struct DeltaKernels {
  gpu::Kernel step;
  gpu::Kernel prepare;  // prefill: convolution, norms, gates, a chunk's triangular inverse
  gpu::Kernel scan;     // prefill: states and writes, chunk after chunk
  gpu::Kernel finish;   // prefill: outputs and their gated norm; the copied part of the state
  DeltaShape shape;

  // Entry points of delta_programs().
  static DeltaKernels find(const gpu::KernelSet& kernels, const DeltaShape& shape);
};

// Bytes of one layer's state in the order of DeltaState (35B-A3B: 5.9 MB).
int64_t delta_state_bytes(const DeltaShape& shape);
// Its arrays, each 256-byte aligned, carved from `base`.
DeltaState delta_state_at(const DeltaShape& shape, char* base);
// Bytes of DeltaStepParams::arrivals, to be cleared once; one serves all layers of a stream.
int64_t delta_arrivals_bytes(const DeltaShape& shape);
// Bytes of DeltaPrefillParams::workspace for blocks of up to `tokens`; one serves all layers.
int64_t delta_prefill_workspace_bytes(const DeltaShape& shape, int64_t tokens);

// Step.count tokens at Step.position; a captured launch serves every step of up to params.tokens.
// `programmatic`: may start while the kernel before it drains. Before it waits it reads the state,
// which no other kernel of a step writes; so the first kernel of each step must not be
// programmatic, that steps follow each other whole.
// Cost: 4 key_dim value_dim bytes a value head of S read, and 4 (r key_dim + value_dim) for each
// token pending in the chunk, r = key_heads / value_heads; S written once in 64 tokens.
void delta_step(gpu::Stream& stream, const DeltaKernels& kernels, const DeltaStepParams& params,
                bool programmatic);

// A block of tokens. Cost a value head and chunk of 64: 4 * 64 * key_dim * value_dim FLOP and half
// of 2 * 64 * 64 * value_dim in the scan, the only part that is done in order; half as much for the
// outputs and 4 * 64 * 64 * key_dim a key head to prepare. The workspace is written and read once.
void delta_prefill(gpu::Stream& stream, const DeltaKernels& kernels,
                   const DeltaPrefillParams& params);

}  // namespace moray::cuda
