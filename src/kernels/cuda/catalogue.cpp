#include "src/kernels/cuda/catalogue.h"

#include <array>

namespace moray::cuda {
namespace {

constexpr std::array kPromises = {
    Promise{"random_*", kEveryArch, "STG.E"},
    Promise{"w8a8_*", kSm90, "QGMMA.64x128x32.F32.E4M3.E4M3"},
    Promise{"w8a8_*", kSm120, "QMMA.SF"},
    Promise{"w8a8_*", kSm89, "QMMA.16832.F32.E4M3.E4M3"},
};

constexpr std::array<LocalMemory, 0> kLocalMemory = {};

}  // namespace

std::span<const Promise> promises() {
  return kPromises;
}

std::span<const LocalMemory> local_memory() {
  return kLocalMemory;
}

bool names(std::string_view pattern, std::string_view kernel) {
  if (!pattern.ends_with('*')) return pattern == kernel;
  return kernel.starts_with(pattern.substr(0, pattern.size() - 1));
}

}  // namespace moray::cuda
