// A block's plan of experts in device memory of its own.
#pragma once

#include "src/kernels/check/device_array.h"
#include "src/kernels/cuda/prefill.h"

namespace moray::check {

class DevicePlan {
 public:
  DevicePlan(const Site& site, const cuda::PrefillShape& shape, int tokens, int tile_rows)
      : bytes_(site, static_cast<size_t>(cuda::expert_plan_bytes(shape, tokens, tile_rows))),
        plan_(cuda::expert_plan_at(shape, tokens, tile_rows,
                                   reinterpret_cast<char*>(bytes_.data()))) {}
  const cuda::ExpertPlan& plan() const { return plan_; }
  // A copy of `count` elements of one of the plan's arrays.
  template <typename T>
  std::vector<T> read(const T* array, int64_t count) const {
    const std::vector<unsigned char> bytes = bytes_.read();
    std::vector<T> values(static_cast<size_t>(count));
    const auto offset = reinterpret_cast<const unsigned char*>(array) - bytes_.data();
    std::memcpy(values.data(), bytes.data() + offset, values.size() * sizeof(T));
    return values;
  }

 private:
  DeviceArray<unsigned char> bytes_;
  cuda::ExpertPlan plan_;
};

}  // namespace moray::check
