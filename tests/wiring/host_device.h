// A stand-in for a GPU in host memory: the same calls as src/gpu, launches that run plain loops.
//
// What it is for: the wiring of the GPU's forward pass (src/model/gpu_*) is tested on machines
// without a GPU by running tests/gpu against this. Invariant: launches run in order, at once or,
// while a graph is captured, each time the graph is launched; parameters are copied when enqueued.
// Kernels themselves are tested on a GPU only.
#pragma once

#include <functional>
#include <vector>

#include "src/gpu/launch.h"
#include "src/gpu/stream.h"

namespace moray::gpu {

class HostStream;

// Runs `work` now, or keeps it for the graph that is being captured.
void enqueue(Stream& stream, std::function<void()> work);

// What launch() does for kernels that have no launcher of their own.
void run_kernel(std::string_view name, const void* params);

}  // namespace moray::gpu
