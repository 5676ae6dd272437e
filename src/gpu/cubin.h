// What a compiled program (cubin, an ELF64 file) says about its kernels.
//
// The facts tests hold against an architecture's limits and the launcher against its parameters,
// without a GPU. Sections and attribute numbers as NVIDIA's cuobjdump shows them: ".text.NAME" is a
// kernel's code, ".nv.shared.NAME" its static shared memory, ".nv.info*" lists of attributes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace moray::gpu {

struct CubinKernel {
  std::string name;
  int registers = 0;
  int stack_bytes = 0;    // a thread: spilled registers and arrays that are not in registers
  int static_shared = 0;  // from sm_90 on with the 1 KiB that the system keeps for itself
  int param_bytes = 0;
  int64_t code_bytes = 0;
};

// The entry points of `bytes` in the file's order. Errors: kInvalidFile for what is no such file;
// never reads outside of `bytes`.
Result<std::vector<CubinKernel>> read_cubin(std::string_view bytes);

}  // namespace moray::gpu
