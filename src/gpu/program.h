// From embedded CUDA sources to kernels of this device: compile, cache, load.
//
// Invariant: a kernel set is a pure function of (sources, constants, architecture, compiler); that
// is its key in the cache. Files there are written whole or not at all, so two processes may build
// the same set at once.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/gpu/environment.h"
#include "src/gpu/launch.h"

namespace moray::gpu {

class Device;
class Compiler;

// A file embedded in the binary; `name` is its path below src/kernels/cuda.
struct Source {
  std::string_view name;
  std::string_view text;
};

// What to build. Each of `programs` names one .cu source, compiled on its own with the .cuh and .h
// sources it includes and `constants` as the header "constants.cuh".
struct BuildRequest {
  std::span<const Source> sources;
  std::vector<std::string> programs;
  std::string constants;
};

struct Cubin {
  std::string program;
  std::string bytes;
};

// Called by the thread that asked for the work, as programs get done, in any order of programs.
using CompileProgress = std::function<void(int done, int total)>;

// Compiles without a device, one thread a core. `arch` is 89, 90 or 120 (built as sm_89, sm_90a,
// sm_120a). Errors: kUnsupported with the compiler's first message, naming the program; kNotFound
// for a program or header that is not among the sources.
Result<std::vector<Cubin>> compile(const Compiler& compiler, const BuildRequest& request, int arch,
                                   const CompileProgress& progress);

// Where the kernels of a set came from, for the user.
struct BuildReport {
  int from_cache = 0, compiled = 0;  // programs
  double seconds = 0;                // of build(), loading included
  std::string compiler;              // Compiler::where()
  std::string cache_trouble;         // "" or why new programs could not be kept

  // "kernels from cache" or "kernels compiled in 3.1 s with NVRTC 13.0 from ...".
  std::string line() const;
};

// The cubins of `request`, in its order: from the cache in `cache_folder` ("": none) where they
// are, the others compiled and, where possible, kept there. Fills all of `report` but `seconds`.
Result<std::vector<Cubin>> obtain_cubins(const Compiler& compiler, const BuildRequest& request,
                                         int arch, const std::string& cache_folder,
                                         const CompileProgress& progress, BuildReport& report);

class KernelSet {
 public:
  // Takes cubins from the cache where they are, compiles the others in parallel, loads all. A cache
  // that cannot be written is no error: report().cache_trouble says so.
  static Result<std::shared_ptr<const KernelSet>> build(
      std::shared_ptr<Device> device, const BuildRequest& request, const CompileProgress& progress,
      const Environment& environment = read_environment());
  virtual ~KernelSet() = default;
  // The kernel `extern "C" __global__ void name(...)` of any of the programs; absent is a CHECK.
  virtual Kernel find(std::string_view name) const = 0;
  virtual bool holds(std::string_view name) const = 0;
  virtual std::vector<std::string> names() const = 0;
  virtual const BuildReport& report() const = 0;
};

// $XDG_CACHE_HOME/moray/kernels or ~/.cache/moray/kernels; "" when neither is known.
std::string cache_folder(const Environment& environment);

}  // namespace moray::gpu
