// Random weights on the host, as oracles take them, and on the device, as kernels do.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "src/kernels/check/device_array.h"
#include "src/kernels/check/quantised.h"
#include "src/kernels/cuda/params.h"

namespace moray::check {

// A matrix that owns its bytes; moving it leaves views valid.
struct OwnedWeights {
  std::vector<unsigned char> bytes;
  std::vector<float> scales;
  MatrixView view;
};
// FP8 or BF16, values of about `size`.
inline OwnedWeights random_weights(Random& random, DType dtype, int64_t rows, int64_t cols,
                                   float size = 0.05f) {
  OwnedWeights made;
  made.bytes.resize(size_t(rows * cols * dtype_bytes(dtype)));
  made.view = {.data = made.bytes.data(), .rows = rows, .cols = cols, .dtype = dtype};
  if (dtype == DType::kF8E4M3) {
    fill_codes(random, made.bytes.data(), rows * cols);
    const int64_t blocks = (rows + kScaleBlock - 1) / kScaleBlock * made.view.scale_cols();
    for (int64_t i = 0; i < blocks; ++i) {
      made.scales.push_back(size / 100 * (0.5f + random.uniform()));
    }
    made.view.scales = made.scales.data();
    return made;
  }
  auto* const values = reinterpret_cast<uint16_t*>(made.bytes.data());
  uint64_t word = 0;
  for (int64_t i = 0; i < rows * cols; ++i) {
    if (i % 4 == 0) word = random.word();
    const float unit = float(int16_t(word >> (i % 4 * 16))) * 0x1p-15f;
    values[i] = float_to_bf16(unit * size * 1.7f);
  }
  return made;
}

inline int padded_columns(int64_t cols) {
  return static_cast<int>((cols + 63) / 64 * 64);
}

inline cuda::Format format_of(const MatrixView& view) {
  return view.dtype == DType::kF8E4M3 ? cuda::Format::kFp8 : cuda::Format::kBf16;
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
  DeviceMatrix(const Site& site, const MatrixView& view)
      : rows_(upload(site, padded_rows(view))),
        scales_(upload(site, scales_of(view))),
        view_(view) {}
  cuda::Matrix matrix() const {
    return {.data = rows_.data(),
            .scales = view_.scales ? scales_.data() : nullptr,
            .rows = static_cast<int>(view_.rows),
            .cols = static_cast<int>(view_.cols),
            .stride = padded_columns(view_.cols),
            .format = format_of(view_)};
  }

 private:
  DeviceArray<unsigned char> rows_;
  DeviceArray<float> scales_;
  MatrixView view_;
};

// Experts of equal shape as equal records: gate, up, down, their scales, each part 256-byte
// aligned. `count` records hold the given experts over and over, so that a model's number of
// experts costs no more on the host than a few.
class DeviceRecords {
 public:
  DeviceRecords(const Site& site, std::span<const ExpertView> experts, int64_t count)
      : layout_(layout_of(experts.front())),
        bytes_(site, static_cast<size_t>(count * layout_.record_bytes)) {
    layout_.base = reinterpret_cast<const char*>(bytes_.data());
    if (bytes_.data() == nullptr) return;
    const std::vector<unsigned char> made = bytes_of(experts);
    const auto distinct = static_cast<int64_t>(made.size());
    const int64_t total = count * layout_.record_bytes;
    gpu::copy_to_device(site.stream, bytes_.data(), made.data(), std::min(distinct, total));
    for (int64_t at = distinct; at < total; at += distinct) {
      gpu::copy_on_device(site.stream, bytes_.data() + at, bytes_.data(),
                          std::min(distinct, total - at));
    }
    site.note(site.stream.synchronize());
  }
  const cuda::ExpertRecords& records() const { return layout_; }

 private:
  static int aligned(size_t bytes) { return static_cast<int>((bytes + 255) / 256 * 256); }
  static cuda::ExpertRecords layout_of(const ExpertView& expert) {
    const auto padded_bytes = [](const MatrixView& view) {
      return aligned(
          static_cast<size_t>(view.rows * padded_columns(view.cols) * dtype_bytes(view.dtype)));
    };
    const int matrix = padded_bytes(expert.gate);
    const int down = padded_bytes(expert.down);
    const int scales = aligned(scales_of(expert.gate).size() * sizeof(float));
    const int down_scales = aligned(scales_of(expert.down).size() * sizeof(float));
    cuda::ExpertRecords layout{};
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
    const cuda::ExpertRecords layout = layout_of(experts.front());
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

  cuda::ExpertRecords layout_;
  DeviceArray<unsigned char> bytes_;
};

// A layer's experts on both sides. At most kDistinctExperts differ, a prime, so that no neighbour
// and no power of two away has the same weights.
class ExpertSet {
 public:
  static constexpr int kDistinctExperts = 13;

  ExpertSet(const Site& site, Random& random, DType dtype, int hidden, int width, int count) {
    for (int e = 0; e < std::min(count, kDistinctExperts); ++e) {
      const MatrixView gate = add(random, dtype, width, hidden);
      const MatrixView up = add(random, dtype, width, hidden);
      views_.push_back({gate, up, add(random, dtype, hidden, width)});
    }
    device_ = std::make_unique<DeviceRecords>(site, views_, count);
  }
  const ExpertView& view(int expert) const { return views_[size_t(expert) % views_.size()]; }
  const cuda::ExpertRecords& records() const { return device_->records(); }

 private:
  MatrixView add(Random& random, DType dtype, int rows, int cols) {
    owned_.push_back(random_weights(random, dtype, rows, cols));
    return owned_.back().view;
  }
  std::vector<OwnedWeights> owned_;
  std::vector<ExpertView> views_;
  std::unique_ptr<DeviceRecords> device_;
};

}  // namespace moray::check
