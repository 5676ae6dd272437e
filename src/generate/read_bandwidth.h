// How fast this machine's threads read memory: the ceiling a decode step is compared with.
#pragma once

#include <cstdint>

#include "src/base/thread_pool.h"

namespace moray {

// Seconds in which `pool` reads `bytes` bytes once: the median of several passes over one buffer of
// that size after a warm-up pass, so that what stays in the caches between passes comes from there,
// as it may for the weights of successive decode steps. Allocates and frees the buffer.
double measure_read_seconds(ThreadPool& pool, int64_t bytes);

}  // namespace moray
