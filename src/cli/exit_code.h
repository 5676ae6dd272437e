// What the exit status of `moray` means: the one table, printed by --help and kept in
// docs/exit-codes.md (a test compares them).
#pragma once

#include <string>

#include "src/base/status.h"

namespace moray {

enum class ExitCode : int {
  kOk = 0,
  kUsage = 2,
  kBadFile = 3,
  kNotFound = 4,
  kUnsupported = 5,
  kExhausted = 6,
  kIo = 7,
  kInterrupted = 130,
};

ExitCode exit_code_of(StatusCode code);

// One line a code: "  0  what it means".
std::string exit_code_table();

}  // namespace moray
