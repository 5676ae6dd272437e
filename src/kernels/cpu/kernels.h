// The table of inner loops behind the CPU ops.
#pragma once

#include "src/kernels/cpu/dispatch.h"

namespace moray::cpu {

struct Kernels {
  Level level;
};

}  // namespace moray::cpu
