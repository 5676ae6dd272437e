// The production ops: src/kernels/ops.h on CPU threads with AVX2 or AVX-512 instructions.
//
// Invariant: bit-equal results whatever the thread count, the batch or the split of a prompt into
// calls (at one instruction level and CPU feature set; levels differ by rounding only).
// Where the work is cut and parallelised is here; the inner loops are in avx2/ and avx512/.
#pragma once

#include "src/base/thread_pool.h"
#include "src/kernels/cpu/dispatch.h"
#include "src/kernels/ops.h"

namespace moray::cpu {

// What an op runs on: threads and the inner loops of one instruction level. Borrowed, not owned.
struct Context {
  ThreadPool* pool;
  const Kernels* kernels;

  Context(ThreadPool& threads, const Kernels& table) : pool(&threads), kernels(&table) {}
  // The best level of this machine; CHECKs that there is one (see kernels_for()).
  Context(ThreadPool& threads) : Context(threads, best_kernels()) {}
};

void embed(const Context& context, const EmbedArgs& args);
void rms_norm(const Context& context, const RmsNormArgs& args);
void linear(const Context& context, const LinearArgs& args);
void gdn(const Context& context, const GdnArgs& args);
void attention(const Context& context, const AttentionArgs& args);
void route(const Context& context, const RouteArgs& args);
void moe(const Context& context, const MoeArgs& args);

}  // namespace moray::cpu
