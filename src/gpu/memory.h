// Device and pinned host memory with owners.
//
// Invariant: an allocation belongs to one Device, which outlives it, and is freed with its owner.
// Counters of allocations exist so that tests can prove that none happens after open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/base/status.h"

namespace moray::gpu {

class Device;
class Stream;

class DeviceMemory {
 public:
  DeviceMemory() = default;
  // 256-byte aligned at least. Errors: kExhausted naming asked and free bytes.
  static Result<DeviceMemory> allocate(std::shared_ptr<Device> device, int64_t bytes);
  DeviceMemory(DeviceMemory&&) noexcept;
  DeviceMemory& operator=(DeviceMemory&&) noexcept;
  ~DeviceMemory();
  char* data() const { return data_; }  // a device address
  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

class PinnedMemory {
 public:
  PinnedMemory() = default;
  static Result<PinnedMemory> allocate(std::shared_ptr<Device> device, int64_t bytes);
  PinnedMemory(PinnedMemory&&) noexcept;
  PinnedMemory& operator=(PinnedMemory&&) noexcept;
  ~PinnedMemory();
  char* data() const { return data_; }  // host and device address alike
  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Enqueued on the stream; host memory must stay valid until it is synchronised (pageable host
// memory makes the call wait).
void copy_to_device(Stream& stream, void* device, const void* host, int64_t bytes);
void copy_to_host(Stream& stream, void* host, const void* device, int64_t bytes);
void copy_on_device(Stream& stream, void* to, const void* from, int64_t bytes);
void fill(Stream& stream, void* device, uint8_t value, int64_t bytes);

struct AllocationCounts {
  int64_t device = 0, pinned = 0;
};
AllocationCounts allocation_counts();

}  // namespace moray::gpu
