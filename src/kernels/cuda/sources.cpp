#include "src/kernels/cuda/sources.h"

namespace moray::cuda {

std::vector<std::string> programs() {
  std::vector<std::string> names;
  for (const gpu::Source& source : sources()) {
    if (source.name.ends_with(".cu")) names.emplace_back(source.name);
  }
  return names;
}

}  // namespace moray::cuda
