#include "src/gpu/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace moray::gpu {
namespace {

enum ClockKind : int { kClockSm = 1, kClockMemory = 2 };

struct Nvml {
  int (*init)() = nullptr;
  int (*driver_release)(char* text, unsigned size) = nullptr;
  int (*device_by_pci_id)(const char* id, void** device) = nullptr;
  int (*clock)(void* device, int kind, unsigned* megahertz) = nullptr;
  bool is_ready = false;
};

template <typename Function>
bool bind(void* library, Function& slot, const char* name) {
  slot = reinterpret_cast<Function>(dlsym(library, name));
  return slot != nullptr;
}

const Nvml& nvml() {
  static const Nvml opened = [] {
    Nvml api;
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return api;
    const bool is_bound = bind(library, api.init, "nvmlInit_v2") &&
                          bind(library, api.driver_release, "nvmlSystemGetDriverVersion") &&
                          bind(library, api.device_by_pci_id, "nvmlDeviceGetHandleByPciBusId_v2") &&
                          bind(library, api.clock, "nvmlDeviceGetClockInfo");
    api.is_ready = is_bound && api.init() == 0;
    return api;
  }();
  return opened;
}

}  // namespace

std::string driver_release() {
  char text[96] = {};
  if (!nvml().is_ready || nvml().driver_release(text, sizeof(text)) != 0) return "";
  return text;
}

std::string current_clocks(const std::string& pci_id) {
  void* device = nullptr;
  unsigned sm = 0, memory = 0;
  if (!nvml().is_ready || nvml().device_by_pci_id(pci_id.c_str(), &device) != 0) return "";
  if (nvml().clock(device, kClockSm, &sm) != 0 || nvml().clock(device, kClockMemory, &memory) != 0)
    return "";
  return fmt::format("SM {} MHz, memory {} MHz", sm, memory);
}

}  // namespace moray::gpu
