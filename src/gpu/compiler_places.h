// Where an NVRTC library may lie on this machine.
#pragma once

#include <string>
#include <vector>

#include "src/gpu/environment.h"

namespace moray::gpu {

struct CompilerPlace {
  std::string file;    // an existing libnvrtc.so*, or a bare name for the system's linker
  std::string origin;  // "CUDA toolkit", "Python environment", ...: for the user
};

// In the order they are tried: a CUDA toolkit (CUDA_HOME or CUDA_PATH, /usr/local/cuda*), what the
// system's linker knows, a Python environment (the active one, that of python3, the user's, the
// system's), the build folder (cuda/nvrtc-*/ beside the program or up to three folders above).
// Toolkits are read from disk alone; no program is started. MORAY_NVRTC, when set, is the only
// place.
std::vector<CompilerPlace> compiler_places(const Environment& environment);

}  // namespace moray::gpu
