// What ends a step whose token the device picks: which ids may be picked, and handing one on.
#pragma once

#include "number.cuh"
#include "../decode_params.h"

namespace moray::cuda {

__device__ __forceinline__ bool may_sample(const Sampleable& sampleable, int id) {
  if (id >= sampleable.limit) return false;
  return sampleable.banned == nullptr || !(sampleable.banned[id / 32] >> (id % 32) & 1);
}

// By one thread: the next step stands at the next position and consumes `id`; the host that polls
// the ring sees (position << 32 | id).
__device__ __forceinline__ void hand_on(int id, Step* step, uint64* ring, int ring_entries) {
  const int position = step->position + step->count;
  step->position = position;
  step->count = 1;
  step->tokens[0] = id;
  if (ring == nullptr) return;
  const uint64 entry = static_cast<uint64>(position) << 32 | static_cast<uint32>(id);
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(ring + position % ring_entries),
               "l"(entry)
               : "memory");
}

}  // namespace moray::cuda
