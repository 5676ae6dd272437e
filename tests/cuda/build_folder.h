// NVRTC and nvdisasm as ./test puts them into the build folder, and nothing else of the machine, so
// that every machine tests the same compiler.
#pragma once

#include <string>

#include "src/gpu/compiler.h"
#include "src/gpu/environment.h"

namespace moray::gpu {

inline Environment build_folder_environment() {
  Environment environment;
  const std::string folder = MORAY_BUILD_DIR;
  environment.nvrtc = folder + "/cuda/nvrtc-13/nvidia/cu13/lib/libnvrtc.so.13";
  environment.cache_home = folder + "/cuda-cache";
  return environment;
}

inline Result<std::shared_ptr<const Compiler>> build_folder_compiler() {
  static const auto found = Compiler::find(build_folder_environment(), 0);
  return found;
}

inline std::string disassembler() {
  return std::string(MORAY_BUILD_DIR) + "/cuda/nvdisasm/nvidia/cu13/bin/nvdisasm";
}

}  // namespace moray::gpu
