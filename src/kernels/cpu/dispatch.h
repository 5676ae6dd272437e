// Which inner loops this machine can run, chosen once from CPUID.
//
// Invariant: code compiled for a wider instruction set is reached only through a Kernels table that
// kernels_for() or best_kernels() returned, so an old machine gets a message instead of SIGILL.
#pragma once

#include <optional>
#include <string_view>

#include "src/base/status.h"

namespace moray::cpu {

enum class Level : uint8_t {
  kAvx2,    // x86-64-v3: AVX2, FMA, F16C, BMI
  kAvx512,  // AVX-512 F, BW, VL, DQ; BF16 products where the CPU has AVX512_BF16 and VBMI
};

struct Kernels;

std::string_view level_name(Level level);  // "avx2", "avx512"

// The best level of this machine, or kUnsupported naming the features that x86-64-v3 lacks here.
Result<Level> cpu_level();

// The table of a level; without one, of the best. kUnsupported if the machine cannot run it.
Result<const Kernels*> kernels_for(std::optional<Level> level);

// kernels_for(nullopt) where failure would be a bug, because start-up has asked cpu_level().
const Kernels& best_kernels();

}  // namespace moray::cpu
