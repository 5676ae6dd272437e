#include "src/gpu/memory.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "src/gpu/open_device.h"
#include "src/gpu/stream.h"

namespace moray::gpu {
namespace {

std::atomic<int64_t> device_allocations = 0;
std::atomic<int64_t> pinned_allocations = 0;

Address address(const void* pointer) {
  return reinterpret_cast<Address>(pointer);
}

std::string gibibytes(int64_t bytes) {
  if (bytes < int64_t{1} << 30) return fmt::format("{:.1f} MiB", double(bytes) / (1 << 20));
  return fmt::format("{:.2f} GiB", double(bytes) / (1 << 30));
}

Status refuse(const OpenDevice& device, const char* kind, int64_t bytes, Code code) {
  RETURN_IF_ERROR(device.fault());
  const int64_t free = device.free_bytes();
  return Status(StatusCode::kExhausted,
                fmt::format("{} of cuda:{}: found {} ({} device memory free), expected {}", kind,
                            device.info().ordinal, device.api().describe(code), gibibytes(free),
                            gibibytes(bytes)));
}

}  // namespace

Result<DeviceMemory> DeviceMemory::allocate(std::shared_ptr<Device> device, int64_t bytes) {
  CHECK(device != nullptr && bytes >= 0, bytes);
  DeviceMemory memory;
  const OpenDevice& opened_device = opened(*device);
  if (bytes > 0) {
    device->make_current();
    Address made = 0;
    const Code code = opened_device.api().memory_allocate(&made, static_cast<size_t>(bytes));
    if (code != Code::kSuccess) return refuse(opened_device, "memory", bytes, code);
    memory.data_ = reinterpret_cast<char*>(made);
    device_allocations.fetch_add(1, std::memory_order_relaxed);
  }
  memory.bytes_ = bytes;
  memory.device_ = std::move(device);
  return memory;
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(std::move(other.device_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

// A failure to free means that the device is lost, and with it the memory.
DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  device_->make_current();
  opened(*device_).api().memory_free(address(data_));
}

Result<PinnedMemory> PinnedMemory::allocate(std::shared_ptr<Device> device, int64_t bytes) {
  CHECK(device != nullptr && bytes >= 0, bytes);
  PinnedMemory memory;
  const OpenDevice& opened_device = opened(*device);
  if (bytes > 0) {
    device->make_current();
    void* made = nullptr;
    const Code code = opened_device.api().host_allocate(&made, static_cast<size_t>(bytes),
                                                        kHostPortable | kHostMapped);
    if (code != Code::kSuccess) return refuse(opened_device, "pinned host memory", bytes, code);
    memory.data_ = static_cast<char*>(made);
    pinned_allocations.fetch_add(1, std::memory_order_relaxed);
  }
  memory.bytes_ = bytes;
  memory.device_ = std::move(device);
  return memory;
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : device_(std::move(other.device_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (data_ == nullptr) return;
  device_->make_current();
  opened(*device_).api().host_free(data_);
}

void copy_to_device(Stream& stream, void* device, const void* host, int64_t bytes) {
  CHECK(bytes >= 0, bytes);
  if (bytes == 0) return;
  const OpenDevice& on = opened(stream.device());
  on.make_current();
  on.settle(
      on.api().copy_to_device(address(device), host, static_cast<size_t>(bytes), stream.handle()),
      "a copy to the device");
}

void copy_to_host(Stream& stream, void* host, const void* device, int64_t bytes) {
  CHECK(bytes >= 0, bytes);
  if (bytes == 0) return;
  const OpenDevice& on = opened(stream.device());
  on.make_current();
  on.settle(
      on.api().copy_to_host(host, address(device), static_cast<size_t>(bytes), stream.handle()),
      "a copy to the host");
}

void copy_on_device(Stream& stream, void* to, const void* from, int64_t bytes) {
  CHECK(bytes >= 0, bytes);
  if (bytes == 0) return;
  const OpenDevice& on = opened(stream.device());
  on.make_current();
  on.settle(on.api().copy_on_device(address(to), address(from), static_cast<size_t>(bytes),
                                    stream.handle()),
            "a copy on the device");
}

void fill(Stream& stream, void* device, uint8_t value, int64_t bytes) {
  CHECK(bytes >= 0, bytes);
  if (bytes == 0) return;
  const OpenDevice& on = opened(stream.device());
  on.make_current();
  on.settle(
      on.api().fill_bytes(address(device), value, static_cast<size_t>(bytes), stream.handle()),
      "a fill");
}

AllocationCounts allocation_counts() {
  return {device_allocations.load(std::memory_order_relaxed),
          pinned_allocations.load(std::memory_order_relaxed)};
}

}  // namespace moray::gpu
