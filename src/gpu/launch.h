// Compiled kernels and how they are started.
//
// Invariant: a Kernel stays valid while the KernelSet it came from lives. launch() only enqueues:
// it never blocks or allocates, and may be captured into a graph. Parameters are one plain struct
// passed by value (src/kernels/cuda/params.h); a wrong size is a CHECK.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace moray::gpu {

class Stream;

struct Dim {
  uint32_t x = 1, y = 1, z = 1;
};

// One entry point of a loaded program.
struct Kernel {
  void* function = nullptr;  // CUfunction
  std::string_view name;
  int registers = 0;
  int local_bytes = 0;  // a thread; more than 0 means spills or a stack frame
  int static_shared = 0;
  int param_bytes = 0;

  explicit operator bool() const { return function != nullptr; }
};

struct LaunchShape {
  Dim grid = {};
  Dim block = {};
  int shared_bytes = 0;       // dynamic; may exceed 48 KiB
  int cluster = 1;            // blocks a cluster along x, sm_90 and later
  bool programmatic = false;  // may start before the previous kernel has drained (grid.cuh)
};

// Enqueues. A launch the driver refuses is a bug of the launcher (CHECK) unless the device itself
// is lost, which Stream::synchronize reports.
void launch(Stream& stream, const Kernel& kernel, const LaunchShape& shape, const void* params,
            int param_bytes);
template <typename Params>
void launch(Stream& stream, const Kernel& kernel, const LaunchShape& shape, const Params& params) {
  launch(stream, kernel, shape, &params, sizeof(Params));
}

}  // namespace moray::gpu
