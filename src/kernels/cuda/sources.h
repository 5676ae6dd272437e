// The CUDA sources of this folder, embedded in the binary when it is built.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "src/gpu/program.h"

namespace moray::cuda {

// Every .cu, .cuh and .h below src/kernels/cuda, named by its path from there.
std::span<const gpu::Source> sources();

// The names of the .cu sources, each a program of its own.
std::vector<std::string> programs();

}  // namespace moray::cuda
