#include "src/gpu/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace moray::gpu {
namespace {

constexpr int kOldestVersion = 12000;

// Resolves the calls one by one and remembers the first that is missing.
class Binder {
 public:
  explicit Binder(void* library) : library_(library) {}

  template <typename Function>
  void bind(Function& slot, const char* name) {
    slot = reinterpret_cast<Function>(dlsym(library_, name));
    if (slot == nullptr && missing_ == nullptr) missing_ = name;
  }
  template <typename Function>
  void bind_optional(Function& slot, const char* name) {
    slot = reinterpret_cast<Function>(dlsym(library_, name));
  }
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

const char* bind_calls(void* library, Driver& api) {
  Binder binder(library);
  binder.bind(api.init, "cuInit");
  binder.bind(api.driver_version, "cuDriverGetVersion");
  binder.bind(api.error_name, "cuGetErrorName");
  binder.bind(api.error_text, "cuGetErrorString");
  binder.bind(api.device_count, "cuDeviceGetCount");
  binder.bind(api.device_get, "cuDeviceGet");
  binder.bind(api.device_name, "cuDeviceGetName");
  binder.bind(api.device_memory, "cuDeviceTotalMem_v2");
  binder.bind(api.device_attribute, "cuDeviceGetAttribute");
  binder.bind(api.device_pci_id, "cuDeviceGetPCIBusId");
  binder.bind(api.context_retain, "cuDevicePrimaryCtxRetain");
  binder.bind(api.context_release, "cuDevicePrimaryCtxRelease_v2");
  binder.bind(api.context_set, "cuCtxSetCurrent");
  binder.bind(api.memory_info, "cuMemGetInfo_v2");
  binder.bind(api.memory_allocate, "cuMemAlloc_v2");
  binder.bind(api.memory_free, "cuMemFree_v2");
  binder.bind(api.host_allocate, "cuMemHostAlloc");
  binder.bind(api.host_free, "cuMemFreeHost");
  binder.bind(api.copy_to_device, "cuMemcpyHtoDAsync_v2");
  binder.bind(api.copy_to_host, "cuMemcpyDtoHAsync_v2");
  binder.bind(api.copy_on_device, "cuMemcpyDtoDAsync_v2");
  binder.bind(api.fill_bytes, "cuMemsetD8Async");
  binder.bind(api.stream_create, "cuStreamCreate");
  binder.bind(api.stream_destroy, "cuStreamDestroy_v2");
  binder.bind(api.stream_synchronize, "cuStreamSynchronize");
  binder.bind(api.stream_wait_event, "cuStreamWaitEvent");
  binder.bind(api.event_create, "cuEventCreate");
  binder.bind(api.event_destroy, "cuEventDestroy_v2");
  binder.bind(api.event_record, "cuEventRecord");
  binder.bind(api.event_synchronize, "cuEventSynchronize");
  binder.bind(api.event_elapsed, "cuEventElapsedTime");
  binder.bind(api.capture_begin, "cuStreamBeginCapture_v2");
  binder.bind(api.capture_end, "cuStreamEndCapture");
  binder.bind(api.graph_nodes, "cuGraphGetNodes");
  binder.bind(api.graph_instantiate, "cuGraphInstantiateWithFlags");
  binder.bind(api.graph_upload, "cuGraphUpload");
  binder.bind(api.graph_launch, "cuGraphLaunch");
  binder.bind(api.graph_destroy, "cuGraphDestroy");
  binder.bind(api.graph_executable_destroy, "cuGraphExecDestroy");
  binder.bind(api.module_load, "cuModuleLoadData");
  binder.bind(api.module_unload, "cuModuleUnload");
  binder.bind(api.module_function, "cuModuleGetFunction");
  binder.bind(api.function_attribute, "cuFuncGetAttribute");
  binder.bind(api.function_set_attribute, "cuFuncSetAttribute");
  binder.bind(api.launch, "cuLaunchKernelEx");
  binder.bind(api.tensor_map_encode, "cuTensorMapEncodeTiled");
  binder.bind_optional(api.function_load, "cuFuncLoad");
  return binder.missing();
}

Status refused(std::string message) {
  return Status(StatusCode::kUnsupported, std::move(message));
}

// The library stays open for the life of the process: contexts and threads of it do as well.
Status open_driver(Driver& api) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  // Where WSL 2 keeps the driver of the Windows host, which its linker configuration may not name.
  if (library == nullptr) library = dlopen("/usr/lib/wsl/lib/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return refused("NVIDIA driver: found no libcuda.so.1 on this machine, expected one");
  const char* missing = bind_calls(library, api);
  if (api.driver_version == nullptr || api.driver_version(&api.version) != Code::kSuccess)
    return refused("NVIDIA driver: found a libcuda.so.1 that tells no version, expected a driver");
  if (api.version < kOldestVersion || missing != nullptr) {
    return refused(fmt::format("NVIDIA driver: found one for CUDA {}.{}{}, expected 12.0 or newer",
                               api.version / 1000, api.version % 1000 / 10,
                               missing ? fmt::format(" without {}", missing) : ""));
  }
  const Code started = api.init(0);
  if (started == Code::kNoDevice)
    return refused("GPU: found none that the NVIDIA driver can use, expected one");
  if (started != Code::kSuccess) {
    return refused(
        fmt::format("NVIDIA driver: found {} at start, expected success", api.describe(started)));
  }
  return Status();
}

struct Opened {
  Driver api{};
  Status status;
};

}  // namespace

std::string Driver::describe(Code code) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name(code, &name) != Code::kSuccess || name == nullptr)
    return fmt::format("error {}", static_cast<int>(code));
  if (error_text(code, &text) != Code::kSuccess || text == nullptr) return name;
  return fmt::format("{} ({})", name, text);
}

Result<const Driver*> driver() {
  static const Opened opened = [] {
    Opened made;
    made.status = open_driver(made.api);
    return made;
  }();
  if (!opened.status.ok()) return opened.status;
  return &opened.api;
}

Status check(const Driver& driver, Code code, const char* what) {
  if (code == Code::kSuccess) return Status();
  return Status(StatusCode::kIo,
                fmt::format("{}: found {}, expected success", what, driver.describe(code)));
}

bool is_caller_fault(Code code) {
  if (code >= Code::kCaptureFirst && code <= Code::kCaptureLast) return true;
  switch (code) {
    case Code::kInvalidValue:
    case Code::kInvalidContext:
    case Code::kInvalidHandle:
    case Code::kIllegalState:
    case Code::kNotFound:
    case Code::kLaunchOutOfResources:
    case Code::kNotSupported:
    case Code::kInvalidClusterSize:
      return true;
    default:
      return false;
  }
}

}  // namespace moray::gpu
