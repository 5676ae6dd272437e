// The Device behind device.h, as the other files of this folder see it.
//
// Invariant: `fault()` keeps the first error after which the context is lost; a call on a lost
// device does nothing, and Stream::synchronize reports the fault.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "src/gpu/device.h"
#include "src/gpu/driver.h"

namespace moray::gpu {

class OpenDevice final : public Device, public std::enable_shared_from_this<OpenDevice> {
 public:
  OpenDevice(const Driver& api, DeviceInfo info, DeviceNumber number, Handle context,
             std::string pci_id);
  ~OpenDevice() override;
  const DeviceInfo& info() const override { return info_; }
  int64_t free_bytes() const override;
  std::string clocks_line() const override;
  std::string driver_line() const override;
  void make_current() const override;

  const Driver& api() const { return *api_; }
  Status fault() const;

  // The outcome of an enqueueing call: success, a bug of the caller (CHECK), or a lost device,
  // which is remembered. `what` names the call.
  void settle(Code code, const char* what) const;
  // The outcome of a call whose failure the caller reports.
  Status outcome(Code code, const char* what) const;

 private:
  void lose(Code code, const char* what) const;

  const Driver* api_;
  DeviceInfo info_;
  DeviceNumber number_;
  Handle context_;
  std::string pci_id_;
  mutable std::mutex fault_mutex_;
  mutable Status fault_;
  mutable std::atomic<bool> is_lost_ = false;
};

// Every Device is an OpenDevice: Device::open makes no other.
inline const OpenDevice& opened(const Device& device) {
  return static_cast<const OpenDevice&>(device);
}

}  // namespace moray::gpu
