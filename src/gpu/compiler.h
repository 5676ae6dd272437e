// NVRTC, NVIDIA's run-time compiler, opened at run time from where it is found.
//
// Invariant: a Compiler stays usable for the life of the process, from any thread; compiles of
// several threads run side by side. The library it loads needs libnvrtc-builtins of its own folder,
// which it opens by bare name: that one is loaded first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/gpu/environment.h"

namespace moray::gpu {

struct NvrtcCalls;

// One translation unit: a source and the headers its include lines name, exactly as they do.
struct Unit {
  struct File {
    std::string name;
    std::string text;
  };
  File source;
  std::vector<File> headers;
};

class Compiler {
 public:
  // Takes the first of compiler_places() that loads, is at least 12.8 (the first that knows all
  // three architectures) and whose major version is not newer than `cuda_version`'s (13000
  // for 13.0; 0: any): an older driver does not load its code. Errors: kUnsupported in one
  // sentence.
  static Result<std::shared_ptr<const Compiler>> find(const Environment& environment,
                                                      int cuda_version);

  // "NVRTC 13.0 from /usr/local/cuda/lib64/libnvrtc.so.13 (CUDA toolkit)".
  const std::string& where() const { return where_; }
  int version() const { return version_; }  // 13000 for 13.0
  // What tells this compiler's output from another's: its version and the size of its library.
  const std::string& identity() const { return identity_; }

  // The cubin of `unit` for sm_89, sm_90a or sm_120a (`arch` 89, 90, 120). Errors: kUnsupported
  // "NAME: " and the compiler's first error.
  Result<std::string> compile(const Unit& unit, int arch) const;

 private:
  Compiler() = default;
  std::shared_ptr<const NvrtcCalls> calls_;
  std::string where_, identity_;
  int version_ = 0;
};

// The options of every compile but the architecture, one string: a part of the cache's key.
std::string compile_options();

}  // namespace moray::gpu
