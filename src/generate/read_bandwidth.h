// How fast this machine's threads read memory: the ceiling a decode step is compared with.
#pragma once

#include <cstdint>

#include "src/base/thread_pool.h"

namespace moray {

// What a decode step reads: some bytes at every step, and a changing part of a larger set.
struct StepReads {
  int64_t always_bytes = 0;  // trunk, head, state, KV
  int64_t pool_bytes = 0;    // all routed experts
  int64_t chosen_bytes = 0;  // of the pool, those of one step: top_k of num_experts
};

// Seconds in which `threads` read one step's bytes: the median of many passes after a warm-up, each
// with another pseudo-random choice from the pool. What stays in the caches from one pass to the
// next comes from there, as it does in successive decode steps; what does not, does not. Allocates
// always_bytes and at most 1 GiB of pool_bytes (more if a step chooses more), and frees them;
// throws std::bad_alloc, which the command line reports, when they cannot be had.
double measure_read_seconds(ThreadPool& threads, const StepReads& reads);

}  // namespace moray
