// What the machine code of each kernel promises: data that tests hold compiled programs against.
//
// Invariant: every kernel of every program has a line here (tests/cuda fails on one that has none),
// so that no kernel compiles to something else than its author meant, on a card nobody here has.
#pragma once

#include <span>
#include <string_view>

#include "src/kernels/cuda/constants.h"

namespace moray::cuda {

// Architectures as a set of bits.
enum ArchSet : unsigned {
  kSm89 = 1,
  kSm90 = 2,
  kSm120 = 4,
  kEveryArch = kSm89 | kSm90 | kSm120,
};

struct Promise {
  // The kernel's name; "w8a8_*" stands for all that start so.
  std::string_view kernel;
  unsigned archs = kEveryArch;
  // The start of a SASS opcode that its body must hold, as nvdisasm prints it ("HMMA.16816.F32",
  // "LDG.E.128"). "" promises no more than a body that stores something.
  std::string_view instruction = "";
  // For which models the promise holds; null: all.
  bool (*holds_for)(const Constants& constants) = nullptr;
};
std::span<const Promise> promises();

// A kernel that may use local memory (a stack frame or spilled registers), and why. All others have
// everything in registers.
struct LocalMemory {
  std::string_view kernel;
  int bytes_max;
  std::string_view reason;
};
std::span<const LocalMemory> local_memory();

// Whether `pattern` of the above means `kernel`.
bool names(std::string_view pattern, std::string_view kernel);

}  // namespace moray::cuda
