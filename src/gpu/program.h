// From embedded CUDA sources to kernels of this device: compile, cache, load.
//
// Invariant: a kernel set is a pure function of (sources, constants, architecture, compiler
// version); that is its key in the cache. Files there are written whole or not at all, so two
// processes may build the same set at once.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/gpu/launch.h"

namespace moray::gpu {

class Device;
class Compiler;

// A file embedded in the binary; `name` is its path below src/kernels/cuda.
struct Source {
  std::string_view name;
  std::string_view text;
};

// What to build. Each of `programs` names one .cu source, compiled on its own with every .cuh and .h
// source as headers and `constants` as the header "constants.cuh".
struct BuildRequest {
  std::span<const Source> sources;
  std::vector<std::string> programs;
  std::string constants;
};

struct Cubin {
  std::string program;
  std::string bytes;
};

// Compiles without a device. `arch` is 89, 90 or 120 (built as sm_89, sm_90a, sm_120a). Errors:
// kUnsupported with the compiler's first message, naming the program.
Result<std::vector<Cubin>> compile(const Compiler& compiler, const BuildRequest& request, int arch,
                                   const std::function<void(int done, int total)>& progress);

class KernelSet {
 public:
  // Takes cubins from the cache where they are, compiles the others in parallel, loads all.
  static Result<std::shared_ptr<const KernelSet>> build(
      std::shared_ptr<Device> device, const BuildRequest& request,
      const std::function<void(int done, int total)>& progress);
  virtual ~KernelSet() = default;
  // The kernel `extern "C" __global__ void name(...)` of any of the programs; absent is a CHECK.
  virtual Kernel find(std::string_view name) const = 0;
};

}  // namespace moray::gpu
