// Device memory of a check: filled with given values or poison, and guarded behind its end.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/gpu/memory.h"
#include "src/gpu/stream.h"
#include "src/tensor/dtype.h"

namespace moray::check {

// Where checks run. The first trouble stays; what is read after it has no meaning.
struct Site {
  std::shared_ptr<gpu::Device> device;
  gpu::Stream& stream;
  Status& trouble;

  void note(Status status) const {
    if (trouble.ok() && !status.ok()) trouble = std::move(status);
  }
};

template <typename T>
class DeviceArray {
 public:
  static constexpr int64_t kGuardBytes = 256;
  static constexpr unsigned char kGuard = 0xa5;

  DeviceArray(const Site& site, std::span<const T> values) : DeviceArray(site, values.size(), 0) {
    if (memory_.data() == nullptr) return;
    gpu::copy_to_device(site_.stream, memory_.data(), values.data(), size_bytes());
    site_.note(site_.stream.synchronize());  // the values may go
  }
  // Poisoned: every byte 0xff, which is NaN in every format of ours.
  DeviceArray(const Site& site, size_t count) : DeviceArray(site, count, 0xff) {}

  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  size_t size() const { return count_; }

  // Waits for the stream. Trouble: a lost device, a guard that was touched.
  std::vector<T> read() const {
    std::vector<T> values(count_);
    std::memset(static_cast<void*>(values.data()), 0xff, values.size() * sizeof(T));
    unsigned char guard[kGuardBytes];
    std::memset(guard, kGuard, sizeof guard);
    if (memory_.data() == nullptr) return values;
    gpu::copy_to_host(site_.stream, values.data(), memory_.data(), size_bytes());
    gpu::copy_to_host(site_.stream, guard, memory_.data() + size_bytes(), kGuardBytes);
    site_.note(site_.stream.synchronize());
    for (const unsigned char byte : guard) {
      if (byte == kGuard) continue;
      site_.note(Status(StatusCode::kUnsupported, "wrote past the end of an array of " +
                                                      std::to_string(size_bytes()) + " bytes"));
      break;
    }
    return values;
  }

 private:
  DeviceArray(const Site& site, size_t count, uint8_t poison) : site_(site), count_(count) {
    auto memory = gpu::DeviceMemory::allocate(site_.device, size_bytes() + kGuardBytes);
    site_.note(memory.status());
    if (!memory.ok()) return;
    memory_ = std::move(memory).value();
    if (poison != 0) gpu::fill(site_.stream, memory_.data(), poison, size_bytes());
    gpu::fill(site_.stream, memory_.data() + size_bytes(), kGuard, kGuardBytes);
  }
  int64_t size_bytes() const { return static_cast<int64_t>(count_ * sizeof(T)); }

  Site site_;
  size_t count_;
  gpu::DeviceMemory memory_;
};

template <typename T>
DeviceArray<T> upload(const Site& site, const std::vector<T>& values) {
  return DeviceArray<T>(site, std::span<const T>(values));
}

inline std::vector<uint16_t> bf16_of(std::span<const float> values) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = float_to_bf16(values[i]);
  return bits;
}
inline std::vector<float> floats_of(std::span<const uint16_t> bits) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = bf16_to_float(bits[i]);
  return values;
}

}  // namespace moray::check
