#include "src/gpu/environment.h"

#include <cstdlib>
#include <filesystem>

namespace moray::gpu {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string first_of(const char* name, const char* other) {
  const std::string value = variable(name);
  return value.empty() ? variable(other) : value;
}

}  // namespace

Environment read_environment() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return {.nvrtc = variable("MORAY_NVRTC"),
          .cuda_home = first_of("CUDA_HOME", "CUDA_PATH"),
          .virtual_env = first_of("VIRTUAL_ENV", "CONDA_PREFIX"),
          .path = variable("PATH"),
          .home = variable("HOME"),
          .cache_home = variable("XDG_CACHE_HOME"),
          .program_folder = error ? "" : program.parent_path().string()};
}

}  // namespace moray::gpu
