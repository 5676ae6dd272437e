#include "src/model/gpu_layout.h"

namespace moray {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kStrideElements = 64;

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

int64_t scale_count(const cuda::Matrix& matrix) {
  return (matrix.rows + kScaleBlock - 1) / kScaleBlock *
         ((matrix.cols + kScaleBlock - 1) / kScaleBlock);
}

cuda::Format format_of(DType dtype) {
  if (dtype == DType::kF8E4M3) return cuda::Format::kFp8;
  return dtype == DType::kBF16 ? cuda::Format::kBf16 : cuda::Format::kF32;
}

cuda::Matrix shape_of(const MatrixView& view) {
  cuda::Matrix matrix{};
  matrix.rows = static_cast<int>(view.rows);
  matrix.cols = static_cast<int>(view.cols);
  matrix.stride = static_cast<int>(round_up(view.cols, kStrideElements));
  matrix.format = format_of(view.dtype);
  return matrix;
}

// The parts of an expert, one after the other; offsets from the record's start.
struct RecordShape {
  cuda::Matrix gate, up, down;
  int64_t up_at = 0, down_at = 0, gate_scales_at = 0, up_scales_at = 0, down_scales_at = 0;
  int64_t bytes = 0;

  explicit RecordShape(const ExpertView& expert)
      : gate(shape_of(expert.gate)), up(shape_of(expert.up)), down(shape_of(expert.down)) {
    const auto take = [this](int64_t count) {
      const int64_t at = bytes;
      bytes += round_up(count, kAlignment);
      return at;
    };
    take(padded_bytes(gate));
    up_at = take(padded_bytes(up));
    down_at = take(padded_bytes(down));
    if (gate.format != cuda::Format::kFp8) return;
    gate_scales_at = take(4 * scale_count(gate));
    up_scales_at = take(4 * scale_count(up));
    down_scales_at = take(4 * scale_count(down));
  }
};

class Builder {
 public:
  Builder(GpuLayout* layout, const std::array<char*, kGpuArenas>& arenas)
      : layout_(*layout), arenas_(arenas) {}

  cuda::Matrix matrix(const MatrixView& view, GpuArena block) {
    if (view.empty()) return cuda::Matrix{};
    cuda::Matrix placed = shape_of(view);
    placed.data = take(block, padded_bytes(placed));
    if (placed.format == cuda::Format::kFp8) {
      placed.scales = reinterpret_cast<const float*>(take(block, 4 * scale_count(placed)));
    }
    layout_.matrices.push_back({&view, placed});
    return placed;
  }
  const float* vector(std::span<const float> values) {
    const auto* to = reinterpret_cast<const float*>(
        take(GpuArena::kLayers, static_cast<int64_t>(values.size_bytes())));
    layout_.vectors.push_back({values, to});
    return to;
  }
  cuda::ExpertRecords records(std::span<const ExpertView> experts, GpuArena block) {
    const RecordShape shape(experts.front());
    cuda::ExpertRecords records{};
    records.record_bytes = shape.bytes;
    records.up = static_cast<int>(shape.up_at);
    records.down = static_cast<int>(shape.down_at);
    records.gate_scales = static_cast<int>(shape.gate_scales_at);
    records.up_scales = static_cast<int>(shape.up_scales_at);
    records.down_scales = static_cast<int>(shape.down_scales_at);
    records.width = shape.gate.rows;
    records.gate_stride = shape.gate.stride;
    records.down_stride = shape.down.stride;
    records.format = shape.gate.format;
    char* base = take(block, shape.bytes * static_cast<int64_t>(experts.size()));
    records.base = base;
    for (const ExpertView& expert : experts) {
      place(expert.gate, shape.gate, base, 0, shape.gate_scales_at);
      place(expert.up, shape.up, base, shape.up_at, shape.up_scales_at);
      place(expert.down, shape.down, base, shape.down_at, shape.down_scales_at);
      base += shape.bytes;
    }
    return records;
  }

 private:
  char* take(GpuArena block, int64_t bytes) {
    const auto index = static_cast<size_t>(block);
    char* at = arenas_[index] + layout_.bytes[index];
    layout_.bytes[index] += round_up(bytes, kAlignment);
    return at;
  }
  void place(const MatrixView& view, cuda::Matrix shape, char* record, int64_t at,
             int64_t scales_at) {
    shape.data = record + at;
    if (shape.format == cuda::Format::kFp8) {
      shape.scales = reinterpret_cast<const float*>(record + scales_at);
    }
    layout_.matrices.push_back({&view, shape});
  }

  GpuLayout& layout_;
  const std::array<char*, kGpuArenas>& arenas_;
};

GpuLayer lay_out_layer(const LayerWeights& w, const float* inv_freq, Builder& builder) {
  const auto dense = [&](const MatrixView& view) {
    return builder.matrix(view, GpuArena::kLayers);
  };
  GpuLayer layer;
  layer.kind = w.kind;
  layer.input_norm = builder.vector(w.input_norm);
  layer.post_norm = builder.vector(w.post_norm);
  if (w.kind == LayerKind::kFullAttention) {
    const AttentionWeights& a = w.attention;
    layer.attention = {dense(a.q), dense(a.k), dense(a.v), dense(a.o), {}};
    layer.attention.vectors = {builder.vector(a.q_norm), builder.vector(a.k_norm), inv_freq};
  } else {
    const DeltaWeights& d = w.delta;
    layer.delta = {dense(d.qkv), dense(d.z), dense(d.b), dense(d.a), dense(d.out), {}};
    layer.delta.vectors = {builder.vector(d.conv), builder.vector(d.a_log),
                           builder.vector(d.dt_bias), builder.vector(d.norm)};
  }
  layer.router = dense(w.moe.gate);
  layer.shared_gate = dense(w.moe.shared_gate);
  layer.experts = builder.records(w.moe.experts, GpuArena::kExperts);
  if (!w.moe.shared.empty()) layer.shared = builder.records({&w.moe.shared, 1}, GpuArena::kLayers);
  return layer;
}

}  // namespace

int64_t element_bytes(cuda::Format format) {
  if (format == cuda::Format::kFp8) return 1;
  return format == cuda::Format::kBf16 ? 2 : 4;
}

int64_t padded_bytes(const cuda::Matrix& matrix) {
  return int64_t{matrix.rows} * matrix.stride * element_bytes(matrix.format);
}

GpuLayout lay_out(const Weights& weights, const std::array<char*, kGpuArenas>& arenas) {
  GpuLayout layout;
  Builder builder(&layout, arenas);
  layout.weights.embedding = builder.matrix(weights.embedding, GpuArena::kTables);
  const float* inv_freq = builder.vector(weights.inv_freq);
  for (const LayerWeights& layer : weights.layers) {
    layout.weights.layers.push_back(lay_out_layer(layer, inv_freq, builder));
  }
  layout.weights.final_norm = builder.vector(weights.final_norm);
  layout.weights.head = weights.has_own_head() ? builder.matrix(weights.head, GpuArena::kTables)
                                               : layout.weights.embedding;
  return layout;
}

}  // namespace moray
