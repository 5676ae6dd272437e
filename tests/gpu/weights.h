// Weights as the kernels take them, made from the host views that the oracles take.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "src/kernels/cuda/params.h"
#include "src/kernels/ops.h"
#include "tests/gpu/device.h"

namespace moray::cuda {

inline int padded_columns(int64_t cols) {
  return static_cast<int>((cols + 63) / 64 * 64);
}

inline Format format_of(const MatrixView& view) {
  return view.dtype == DType::kF8E4M3 ? Format::kFp8 : Format::kBf16;
}

// The rows of a matrix padded with zeros to a multiple of 64 columns.
inline std::vector<unsigned char> padded_rows(const MatrixView& view) {
  const auto size = static_cast<size_t>(dtype_bytes(view.dtype));
  const size_t row = static_cast<size_t>(view.cols) * size;
  const size_t padded = static_cast<size_t>(padded_columns(view.cols)) * size;
  std::vector<unsigned char> bytes(static_cast<size_t>(view.rows) * padded, 0);
  for (size_t r = 0; r < static_cast<size_t>(view.rows); ++r) {
    std::memcpy(bytes.data() + r * padded, static_cast<const char*>(view.data) + r * row, row);
  }
  return bytes;
}

inline std::vector<float> scales_of(const MatrixView& view) {
  if (view.scales == nullptr) return {};
  const int64_t rows = (view.rows + kScaleBlock - 1) / kScaleBlock;
  return {view.scales, view.scales + rows * view.scale_cols()};
}

class DeviceMatrix {
 public:
  DeviceMatrix(gpu::Stream& stream, const MatrixView& view)
      : rows_(stream, std::span<const unsigned char>(padded_rows(view))),
        scales_(stream, std::span<const float>(scales_of(view))),
        view_(view) {}
  Matrix matrix() const {
    return {.data = rows_.data(),
            .scales = view_.scales ? scales_.data() : nullptr,
            .rows = static_cast<int>(view_.rows),
            .cols = static_cast<int>(view_.cols),
            .stride = padded_columns(view_.cols),
            .format = format_of(view_)};
  }

 private:
  gpu::DeviceArray<unsigned char> rows_;
  gpu::DeviceArray<float> scales_;
  MatrixView view_;
};

// Experts of equal shape as equal records: gate, up, down, their scales, each part 256-byte
// aligned.
class DeviceRecords {
 public:
  DeviceRecords(gpu::Stream& stream, std::span<const ExpertView> experts)
      : layout_(layout_of(experts.front())), bytes_(stream, bytes_of(experts)) {
    layout_.base = reinterpret_cast<const char*>(bytes_.data());
  }
  const ExpertRecords& records() const { return layout_; }

 private:
  static int aligned(size_t bytes) { return static_cast<int>((bytes + 255) / 256 * 256); }
  static ExpertRecords layout_of(const ExpertView& expert) {
    const int matrix = aligned(padded_rows(expert.gate).size());
    const int down = aligned(padded_rows(expert.down).size());
    const int scales = aligned(scales_of(expert.gate).size() * sizeof(float));
    const int down_scales = aligned(scales_of(expert.down).size() * sizeof(float));
    ExpertRecords layout{};
    layout.up = matrix;
    layout.down = 2 * matrix;
    layout.gate_scales = layout.down + down;
    layout.up_scales = layout.gate_scales + scales;
    layout.down_scales = layout.up_scales + scales;
    layout.record_bytes = layout.down_scales + down_scales;
    layout.width = static_cast<int>(expert.gate.rows);
    layout.gate_stride = padded_columns(expert.gate.cols);
    layout.down_stride = padded_columns(expert.down.cols);
    layout.format = format_of(expert.gate);
    return layout;
  }
  static std::vector<unsigned char> bytes_of(std::span<const ExpertView> experts) {
    const ExpertRecords layout = layout_of(experts.front());
    std::vector<unsigned char> bytes(experts.size() * static_cast<size_t>(layout.record_bytes));
    unsigned char* record = bytes.data();
    for (const ExpertView& expert : experts) {
      put(record, padded_rows(expert.gate));
      put(record + layout.up, padded_rows(expert.up));
      put(record + layout.down, padded_rows(expert.down));
      put(record + layout.gate_scales, scales_of(expert.gate));
      put(record + layout.up_scales, scales_of(expert.up));
      put(record + layout.down_scales, scales_of(expert.down));
      record += layout.record_bytes;
    }
    return bytes;
  }
  template <typename T>
  static void put(unsigned char* to, const std::vector<T>& values) {
    if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(T));
  }

  ExpertRecords layout_;
  gpu::DeviceArray<unsigned char> bytes_;
};

}  // namespace moray::cuda
