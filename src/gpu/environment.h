// What the process's environment says about where the compiler and the cache are.
//
// The one place of the library that reads environment variables; everything else is handed this.
#pragma once

#include <string>

namespace moray::gpu {

// Every field may be empty.
struct Environment {
  std::string nvrtc;           // MORAY_NVRTC: the file of NVRTC to take, whatever else is there
  std::string cuda_home;       // CUDA_HOME, else CUDA_PATH
  std::string virtual_env;     // VIRTUAL_ENV, else CONDA_PREFIX
  std::string path;            // PATH, for the folder of python3
  std::string home;            // HOME
  std::string cache_home;      // XDG_CACHE_HOME
  std::string program_folder;  // of the running executable
};

Environment read_environment();

}  // namespace moray::gpu
