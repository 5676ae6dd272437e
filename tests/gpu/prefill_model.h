// The models that prefill tests compile the kernels for, and what those tests share.
#pragma once

#include <map>
#include <string>

#include "src/gpu/program.h"
#include "src/kernels/cuda/constants.h"
#include "src/kernels/cuda/prefill.h"
#include "src/kernels/cuda/sources.h"
#include "tests/gpu/device.h"
#include "tests/kernels/support.h"
#include "tests/support/gates.h"

namespace moray::cuda {

struct PrefillModel {
  std::string name;
  Constants constants;
  DType dtype;  // of projections and experts
};

// Off every tile and in both formats; with and without a shared expert; both kinds of norm.
inline std::vector<PrefillModel> prefill_models() {
  const int arch = gpu::test_device()->info().arch();
  const int multiprocessors = gpu::test_device()->info().multiprocessors;
  const auto model = [&](std::string name, int hidden, int experts, int top_k, int width,
                         int shared, DType dtype) {
    Constants c;
    c.arch = arch;
    c.multiprocessors = multiprocessors;
    c.hidden = hidden;
    c.vocab_rows = 320;
    c.norm_eps = 1e-6f;
    c.zero_centred_norms = c.normalise_top_k = shared > 0;
    c.experts = experts;
    c.top_k = top_k;
    c.expert_dim = width;
    c.shared_dim = shared;
    c.projection_fp8 = c.expert_fp8 = c.shared_fp8 = dtype == DType::kF8E4M3;
    return PrefillModel{std::move(name), c, dtype};
  };
  return {model("tiny", 48, 5, 3, 16, 24, DType::kBF16),
          model("tiny-fp8", 144, 9, 3, 40, 40, DType::kF8E4M3),
          model("nano", 256, 32, 4, 128, 128, DType::kF8E4M3),
          model("wide", 384, 70, 10, 192, 0, DType::kBF16)};
}

inline PrefillShape shape_of(const Constants& c) {
  return {.hidden = c.hidden,
          .experts = c.experts,
          .top_k = c.top_k,
          .expert_dim = c.expert_dim,
          .shared_dim = c.shared_dim,
          .multiprocessors = c.multiprocessors};
}

// Compiled once a process.
inline PrefillKernels prefill_kernels(const PrefillModel& model) {
  static std::map<std::string, std::shared_ptr<const gpu::KernelSet>> sets;
  auto& set = sets[model.name];
  if (set == nullptr) {
    const gpu::BuildRequest request{.sources = sources(),
                                    .programs = {"prefill_rows.cu", "prefill_route.cu",
                                                 "prefill_project.cu", "prefill_experts.cu"},
                                    .constants = constants_text(model.constants)};
    auto built = gpu::KernelSet::build(gpu::test_device(), request, {});
    CHECK(built.ok(), built.status().message());
    set = *built;
  }
  return find_prefill_kernels(*set, shape_of(model.constants));
}

inline std::vector<uint16_t> bf16_of(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = float_to_bf16(values[i]);
  return bits;
}
inline std::vector<float> floats_of(const std::vector<uint16_t>& bits) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = bf16_to_float(bits[i]);
  return values;
}

template <typename T>
gpu::DeviceArray<T> upload(gpu::Stream& stream, const std::vector<T>& values) {
  return gpu::DeviceArray<T>(stream, std::span<const T>(values));
}

// A plan in device memory of its own.
class DevicePlan {
 public:
  DevicePlan(gpu::Stream& stream, const PrefillShape& shape, int tokens, int tile_rows)
      : bytes_(stream, static_cast<size_t>(expert_plan_bytes(shape, tokens, tile_rows))),
        plan_(expert_plan_at(shape, tokens, tile_rows, reinterpret_cast<char*>(bytes_.data()))) {}
  const ExpertPlan& plan() const { return plan_; }
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
  gpu::DeviceArray<unsigned char> bytes_;
  ExpertPlan plan_;
};

}  // namespace moray::cuda
