#include "src/gpu/device.h"

#include <fmt/format.h>

#include "src/gpu/nvml.h"
#include "src/gpu/open_device.h"

namespace moray::gpu {
namespace {

Result<DeviceInfo> describe_device(const Driver& api, int ordinal, DeviceNumber* number) {
  RETURN_IF_ERROR(check(api, api.device_get(number, ordinal), "GPU"));
  DeviceInfo info;
  info.ordinal = ordinal;
  info.driver_version = api.version;
  char name[256] = {};
  size_t memory = 0;
  int l2 = 0;
  RETURN_IF_ERROR(check(api, api.device_name(name, sizeof(name), *number), "GPU name"));
  RETURN_IF_ERROR(check(api, api.device_memory(&memory, *number), "GPU memory"));
  const std::pair<DeviceAttribute, int*> wanted[] = {
      {DeviceAttribute::kMajor, &info.major},
      {DeviceAttribute::kMinor, &info.minor},
      {DeviceAttribute::kMultiprocessors, &info.multiprocessors},
      {DeviceAttribute::kL2Bytes, &l2},
      {DeviceAttribute::kSharedBytesMax, &info.shared_bytes_max},
  };
  for (const auto& [attribute, value] : wanted)
    RETURN_IF_ERROR(check(api, api.device_attribute(value, attribute, *number), "GPU attribute"));
  info.name = name;
  info.memory_bytes = static_cast<int64_t>(memory);
  info.l2_bytes = l2;
  return info;
}

Result<int> count_devices(const Driver& api) {
  int count = 0;
  RETURN_IF_ERROR(check(api, api.device_count(&count), "GPU count"));
  if (count == 0)
    return Status(StatusCode::kUnsupported,
                  "GPU: found none that the NVIDIA driver can use, expected one");
  return count;
}

}  // namespace

int DeviceInfo::arch() const {
  const int capability = major * 10 + minor;
  return capability == 89 || capability == 90 || capability == 120 ? capability : 0;
}

Result<std::vector<DeviceInfo>> list_devices() {
  ASSIGN_OR_RETURN(const Driver* api, driver());
  ASSIGN_OR_RETURN(const int count, count_devices(*api));
  std::vector<DeviceInfo> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    DeviceNumber number = 0;
    ASSIGN_OR_RETURN(DeviceInfo info, describe_device(*api, ordinal, &number));
    devices.push_back(std::move(info));
  }
  return devices;
}

Result<std::shared_ptr<Device>> Device::open(int ordinal) {
  ASSIGN_OR_RETURN(const Driver* api, driver());
  ASSIGN_OR_RETURN(const int count, count_devices(*api));
  if (ordinal < 0 || ordinal >= count) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("GPU: found cuda:{}, expected 0 to {}", ordinal, count - 1));
  }
  DeviceNumber number = 0;
  ASSIGN_OR_RETURN(DeviceInfo info, describe_device(*api, ordinal, &number));
  if (info.arch() == 0) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("cuda:{} {}: found compute capability {}.{}, expected 8.9, 9.0 or "
                              "12.0",
                              ordinal, info.name, info.major, info.minor));
  }
  char pci_id[32] = {};
  RETURN_IF_ERROR(check(*api, api->device_pci_id(pci_id, sizeof(pci_id), number), "GPU bus id"));
  Handle context = nullptr;
  const std::string what = fmt::format("cuda:{} {}", ordinal, info.name);
  RETURN_IF_ERROR(check(*api, api->context_retain(&context, number), what.c_str()));
  return std::shared_ptr<Device>(
      std::make_shared<OpenDevice>(*api, std::move(info), number, context, pci_id));
}

OpenDevice::OpenDevice(const Driver& api, DeviceInfo info, DeviceNumber number, Handle context,
                       std::string pci_id)
    : api_(&api),
      info_(std::move(info)),
      number_(number),
      context_(context),
      pci_id_(std::move(pci_id)) {}

OpenDevice::~OpenDevice() {
  api_->context_release(number_);
}

int64_t OpenDevice::free_bytes() const {
  make_current();
  size_t free = 0, total = 0;
  if (api_->memory_info(&free, &total) != Code::kSuccess) return 0;
  return static_cast<int64_t>(free);
}

std::string OpenDevice::clocks_line() const {
  const std::string clocks = current_clocks(pci_id_);
  return clocks.empty() ? "unknown" : clocks;
}

std::string OpenDevice::driver_line() const {
  const std::string release = driver_release();
  const int version = info_.driver_version;
  return fmt::format("{} (CUDA {}.{})", release.empty() ? "unknown release" : release,
                     version / 1000, version % 1000 / 10);
}

void OpenDevice::make_current() const {
  settle(api_->context_set(context_), "cuCtxSetCurrent");
}

Status OpenDevice::fault() const {
  if (!is_lost_.load(std::memory_order_acquire)) return Status();
  const std::lock_guard lock(fault_mutex_);
  return fault_;
}

void OpenDevice::settle(Code code, const char* what) const {
  if (code == Code::kSuccess || is_lost_.load(std::memory_order_acquire)) return;
  CHECK(!is_caller_fault(code), what, api_->describe(code));
  lose(code, what);
}

Status OpenDevice::outcome(Code code, const char* what) const {
  if (code != Code::kSuccess && !is_lost_.load(std::memory_order_acquire)) lose(code, what);
  return fault();
}

void OpenDevice::lose(Code code, const char* what) const {
  const std::lock_guard lock(fault_mutex_);
  if (!fault_.ok()) return;
  fault_ = Status(StatusCode::kIo,
                  fmt::format("cuda:{} {}: found {} at {}, expected it to work; the device's state "
                              "is lost",
                              info_.ordinal, info_.name, api_->describe(code), what));
  is_lost_.store(true, std::memory_order_release);
}

}  // namespace moray::gpu
