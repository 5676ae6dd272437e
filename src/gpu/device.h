// The GPUs of this machine and one opened for use.
//
// The driver is loaded with dlopen on first use; a machine without it is a Status, never a failure
// to start. Invariant: a Device holds the primary context of its GPU; calls on it make that context
// current on the calling thread by themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace moray::gpu {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int shared_bytes_max = 0;  // a block may ask for
  int driver_version = 0;    // 13000 for 13.0: the newest CUDA the driver serves

  // 89, 90 or 120: the architecture kernels are compiled for; 0: none of ours.
  int arch() const;
};

// Errors, one sentence each: no driver on this machine, a driver too old (found, expected), no GPU.
Result<std::vector<DeviceInfo>> list_devices();

class Device {
 public:
  // Errors also: ordinal out of range, an architecture older than sm_89 or unknown.
  static Result<std::shared_ptr<Device>> open(int ordinal);
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual int64_t free_bytes() const = 0;
  virtual std::string clocks_line() const = 0;  // "SM 1980 MHz, memory 3201 MHz" or "unknown"
  virtual std::string driver_line() const = 0;  // "580.159.04 (CUDA 13.0)"
  virtual void make_current() const = 0;
};

}  // namespace moray::gpu
