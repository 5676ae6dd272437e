// The GPU that tests run on: opened once a process, with a stream.
//
// A failure to open is a failure of the test, with the reason: --gpu promises that there is one.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "src/gpu/device.h"
#include "src/gpu/memory.h"
#include "src/gpu/stream.h"

namespace moray::gpu {

// Null when there is none, after saying why.
inline std::shared_ptr<Device> test_device() {
  static const Result<std::shared_ptr<Device>> opened = Device::open(0);
  if (!opened.ok()) {
    ADD_FAILURE() << opened.status().message();
    return nullptr;
  }
  return *opened;
}

inline std::unique_ptr<Stream> test_stream() {
  const std::shared_ptr<Device> device = test_device();
  if (device == nullptr) return nullptr;
  Result<std::unique_ptr<Stream>> stream = Stream::create(device);
  EXPECT_TRUE(stream.ok()) << stream.status().message();
  return stream.ok() ? std::move(stream).value() : nullptr;
}

// A device copy of `values` with guard bytes behind it.
template <typename T>
class DeviceArray {
 public:
  static constexpr int64_t kGuardBytes = 256;
  static constexpr unsigned char kGuard = 0xa5;

  DeviceArray(Stream& stream, std::span<const T> values) : stream_(stream), count_(values.size()) {
    std::vector<char> bytes(size_bytes() + kGuardBytes, static_cast<char>(kGuard));
    std::memcpy(bytes.data(), values.data(), size_bytes());
    Result<DeviceMemory> memory =
        DeviceMemory::allocate(test_device(), static_cast<int64_t>(bytes.size()));
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    if (!memory.ok()) return;
    memory_ = std::move(memory).value();
    copy_to_device(stream_, memory_.data(), bytes.data(), memory_.bytes());
    EXPECT_TRUE(stream_.synchronize().ok());
  }
  // Poisoned: every byte 0xff, which is NaN in every format of ours.
  DeviceArray(Stream& stream, size_t count)
      : DeviceArray(stream, std::span<const T>(poison(count))) {}

  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  size_t size() const { return count_; }

  // Waits for the stream; fails the test when the guard was touched.
  std::vector<T> read() const {
    std::vector<char> bytes(static_cast<size_t>(memory_.bytes()));
    copy_to_host(stream_, bytes.data(), memory_.data(), memory_.bytes());
    const Status status = stream_.synchronize();
    EXPECT_TRUE(status.ok()) << status.message();
    for (size_t i = size_bytes(); i < bytes.size(); ++i) {
      if (static_cast<unsigned char>(bytes[i]) != kGuard) {
        ADD_FAILURE() << "written past the end at byte " << i << " of " << size_bytes();
        break;
      }
    }
    std::vector<T> values(count_);
    std::memcpy(values.data(), bytes.data(), size_bytes());
    return values;
  }

 private:
  size_t size_bytes() const { return count_ * sizeof(T); }
  static std::vector<T> poison(size_t count) {
    std::vector<T> values(count);
    std::memset(static_cast<void*>(values.data()), 0xff, count * sizeof(T));
    return values;
  }

  Stream& stream_;
  size_t count_;
  DeviceMemory memory_;
};

}  // namespace moray::gpu
