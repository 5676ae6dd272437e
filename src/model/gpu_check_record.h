// Findings of the first start, kept beside the compiled kernels.
//
// Invariant: a record is believed only for the card, the driver and the kernels it was made with,
// all of which are its key; a damaged one is as good as none.
#pragma once

#include <optional>
#include <string>

#include "src/model/gpu_check.h"

namespace moray {

class GpuCheckRecord {
 public:
  // `folder` is the kernel cache's; "" remembers nothing. `card` names the GPU and its driver,
  // `kernels` the set (gpu::BuildReport::identity).
  GpuCheckRecord(std::string folder, const std::string& card, const std::string& kernels);

  // The faults found, none of them for a card that is right; nullopt: not checked yet.
  std::optional<std::vector<KernelFault>> load() const;
  // Errors: kIo, as CubinCache::store.
  Status store(std::span<const KernelFault> faults) const;

 private:
  std::string folder_, key_;
};

}  // namespace moray
