// Which GPUs there are and whether a model's weights fit them; see moray/tools.h.
#include <fmt/core.h>

#include "moray/tools.h"
#include "src/formats/checkpoint.h"
#include "src/generate/gpu_plan.h"
#include "src/gpu/device.h"
#include "src/model/blank_weights.h"

namespace moray {

Result<std::vector<DeviceFit>> device_fits(const std::string& folder) {
  ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(folder));
  ASSIGN_OR_RETURN(const std::vector<gpu::DeviceInfo> devices, gpu::list_devices());
  const int64_t weight_bytes =
      gpu_weights_bytes(blank_weights(config, HeadFormat::kPublished, nullptr));
  std::vector<DeviceFit> fits;
  for (const gpu::DeviceInfo& info : devices) {
    DeviceFit fit;
    fit.name = fmt::format("cuda:{} {} (sm_{}{})", info.ordinal, info.name, info.major, info.minor);
    fit.memory_bytes = info.memory_bytes;
    fit.weight_bytes = weight_bytes;
    Status status = check_gpu_family(config);
    if (status.ok()) status = check_gpu_limits(config);
    if (status.ok()) {
      const auto device = gpu::Device::open(info.ordinal);
      if (device.ok()) fit.free_bytes = (*device)->free_bytes();
      status = device.ok() ? check_gpu_room(config, HeadFormat::kPublished, fit.free_bytes)
                           : device.status();
    }
    fit.refusal = status.message();
    fits.push_back(std::move(fit));
  }
  return fits;
}

}  // namespace moray
