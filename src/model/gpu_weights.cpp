// Bringing weights to the device; where they go is gpu_layout.h.
#include "src/model/gpu_weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "src/gpu/program.h"
#include "src/gpu/stream.h"
#include "src/kernels/cuda/random_fill.h"
#include "src/model/blank_weights.h"
#include "src/model/gpu_layout.h"
#include "src/model/random_weights.h"

namespace moray {
namespace {

constexpr int64_t kPieceBytesMax = int64_t{64} << 20;
constexpr int64_t kPieceBytesMin = int64_t{1} << 20;
constexpr size_t kPieces = 4;
constexpr int kFillThreads = 256;
constexpr int kFillBlocksMax = 4096;

Status cancelled() {
  return Status(StatusCode::kCancelled, "loading: cancelled");
}

// Pinned memory in pieces that are filled by the host while others are on their way.
class Staging {
 public:
  static Result<Staging> create(const std::shared_ptr<gpu::Device>& device, gpu::Stream& stream,
                                int64_t piece_bytes) {
    Staging staging(stream, piece_bytes);
    for (size_t i = 0; i < kPieces; ++i) {
      Piece piece;
      ASSIGN_OR_RETURN(piece.memory, gpu::PinnedMemory::allocate(device, piece_bytes));
      ASSIGN_OR_RETURN(piece.sent, gpu::Event::create(device));
      staging.pieces_.push_back(std::move(piece));
    }
    return staging;
  }
  int64_t piece_bytes() const { return piece_bytes_; }

  // Room for `bytes` (at most a piece); valid until the next call.
  char* room(int64_t bytes) {
    CHECK(bytes <= piece_bytes_, bytes, piece_bytes_);
    if (used_ + bytes > piece_bytes_) {
      pieces_[current_].sent->record(stream_);
      pieces_[current_].is_sent = true;
      current_ = (current_ + 1) % kPieces;
      used_ = 0;
      Piece& next = pieces_[current_];
      if (next.is_sent) (void)next.sent->seconds_since(*next.sent);  // waits
    }
    return pieces_[current_].memory.data() + used_;
  }
  // What was put into the room goes to `device`.
  void send(void* device, int64_t bytes) {
    gpu::copy_to_device(stream_, device, pieces_[current_].memory.data() + used_, bytes);
    used_ += (bytes + 15) / 16 * 16;
  }

 private:
  struct Piece {
    gpu::PinnedMemory memory;
    std::unique_ptr<gpu::Event> sent;
    bool is_sent = false;
  };
  Staging(gpu::Stream& stream, int64_t piece_bytes) : stream_(stream), piece_bytes_(piece_bytes) {}

  gpu::Stream& stream_;
  int64_t piece_bytes_;
  std::vector<Piece> pieces_;
  size_t current_ = 0;
  int64_t used_ = 0;
};

void send_bytes(Staging& staging, const void* device, const void* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes;) {
    const int64_t size = std::min(bytes - at, staging.piece_bytes());
    std::memcpy(staging.room(size), static_cast<const char*>(from) + at, static_cast<size_t>(size));
    staging.send(static_cast<char*>(const_cast<void*>(device)) + at, size);
    at += size;
  }
}

// Rows with their padding, as many at a time as a piece holds.
void send_matrix(Staging& staging, const MatrixCopy& copy) {
  const int64_t element = element_bytes(copy.to.format);
  const int64_t row_bytes = copy.from->cols * element;
  const int64_t stride_bytes = copy.to.stride * element;
  const auto* from = static_cast<const char*>(copy.from->data);
  auto* to = static_cast<char*>(const_cast<void*>(copy.to.data));
  const int64_t rows_a_time = staging.piece_bytes() / stride_bytes;
  CHECK(rows_a_time > 0, stride_bytes);
  for (int64_t row = 0; row < copy.from->rows; row += rows_a_time) {
    const int64_t rows = std::min(rows_a_time, copy.from->rows - row);
    char* room = staging.room(rows * stride_bytes);
    if (row_bytes == stride_bytes) {
      std::memcpy(room, from + row * row_bytes, static_cast<size_t>(rows * row_bytes));
    } else {
      for (int64_t i = 0; i < rows; ++i) {
        std::memcpy(room + i * stride_bytes, from + (row + i) * row_bytes,
                    static_cast<size_t>(row_bytes));
        std::memset(room + i * stride_bytes + row_bytes, 0,
                    static_cast<size_t>(stride_bytes - row_bytes));
      }
    }
    staging.send(to + row * stride_bytes, rows * stride_bytes);
  }
  if (copy.to.scales == nullptr) return;
  const int64_t scale_rows = (copy.from->rows + kScaleBlock - 1) / kScaleBlock;
  send_bytes(staging, copy.to.scales, copy.from->scales,
             scale_rows * copy.from->scale_cols() * static_cast<int64_t>(sizeof(float)));
}

int64_t total_bytes(const GpuLayout& layout) {
  int64_t bytes = 0;
  for (const int64_t block : layout.bytes) bytes += block;
  return bytes;
}

// The layout in memory of its own.
Result<GpuLayout> allocate(const std::shared_ptr<gpu::Device>& device, const Weights& weights) {
  const GpuLayout sizes = lay_out(weights, {});
  std::array<char*, kGpuArenas> blocks{};
  std::vector<gpu::DeviceMemory> memory;
  for (size_t i = 0; i < kGpuArenas; ++i) {
    ASSIGN_OR_RETURN(auto block, gpu::DeviceMemory::allocate(device, sizes.bytes[i]));
    blocks[i] = block.data();
    memory.push_back(std::move(block));
  }
  GpuLayout layout = lay_out(weights, blocks);
  layout.weights.memory = std::move(memory);
  return layout;
}

Status send_vectors(Staging& staging, const GpuLayout& layout) {
  for (const VectorCopy& vector : layout.vectors) {
    send_bytes(staging, vector.to, vector.from.data(),
               static_cast<int64_t>(vector.from.size_bytes()));
  }
  return Status();
}

// One class of matrices, whose format the kernels are compiled for.
class FormatClass {
 public:
  explicit FormatClass(const char* name) : name_(name) {}
  Status add(const MatrixView& view) {
    if (view.empty()) return Status();
    if (view.dtype != DType::kF8E4M3 && view.dtype != DType::kBF16) {
      return refuse(dtype_name(view.dtype), "F8_E4M3 or BF16");
    }
    if (dtype_ && *dtype_ != view.dtype) return refuse(dtype_name(view.dtype), dtype_name(*dtype_));
    dtype_ = view.dtype;
    return Status();
  }
  bool is_fp8() const { return dtype_ == DType::kF8E4M3; }

 private:
  Status refuse(std::string_view found, std::string_view expected) const {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("cuda: found {} weights of dtype {}, expected {}", name_, found, expected));
  }
  const char* name_;
  std::optional<DType> dtype_;
};

Status add_expert(FormatClass& format, const ExpertView& expert) {
  RETURN_IF_ERROR(format.add(expert.gate));
  RETURN_IF_ERROR(format.add(expert.up));
  return format.add(expert.down);
}

}  // namespace

Result<GpuFormats> gpu_formats(const Weights& weights) {
  FormatClass projections("projection");
  FormatClass experts("expert");
  FormatClass shared("shared expert");
  FormatClass small("router, gate or delta-net");
  FormatClass embedding("embedding");
  FormatClass head("head");
  RETURN_IF_ERROR(embedding.add(weights.embedding));
  RETURN_IF_ERROR(head.add(weights.head));
  for (const LayerWeights& layer : weights.layers) {
    const AttentionWeights& a = layer.attention;
    const DeltaWeights& d = layer.delta;
    for (const MatrixView* view : {&a.q, &a.k, &a.v, &a.o, &d.qkv, &d.z, &d.out}) {
      RETURN_IF_ERROR(projections.add(*view));
    }
    for (const MatrixView* view : {&d.b, &d.a, &layer.moe.gate, &layer.moe.shared_gate}) {
      RETURN_IF_ERROR(small.add(*view));
    }
    for (const ExpertView& expert : layer.moe.experts) RETURN_IF_ERROR(add_expert(experts, expert));
    RETURN_IF_ERROR(add_expert(shared, layer.moe.shared));
  }
  GpuFormats formats;
  formats.projections_fp8 = projections.is_fp8();
  formats.experts_fp8 = experts.is_fp8();
  formats.shared_fp8 = shared.is_fp8();
  formats.head_fp8 = head.is_fp8();
  return formats;
}

int64_t gpu_weights_bytes(const Weights& weights) {
  return total_bytes(lay_out(weights, {}));
}

Result<GpuWeights> upload_weights(const std::shared_ptr<gpu::Device>& device, gpu::Stream& stream,
                                  const Weights& weights, const UploadProgress& progress) {
  ASSIGN_OR_RETURN(GpuLayout layout, allocate(device, weights));
  const int64_t total = total_bytes(layout);
  const int64_t piece_bytes =
      std::clamp(total / static_cast<int64_t>(kPieces), kPieceBytesMin, kPieceBytesMax);
  ASSIGN_OR_RETURN(Staging staging, Staging::create(device, stream, piece_bytes));
  RETURN_IF_ERROR(send_vectors(staging, layout));
  int64_t done = 0;
  for (const MatrixCopy& copy : layout.matrices) {
    if (progress && !progress(done, total)) {
      RETURN_IF_ERROR(stream.synchronize());
      return cancelled();
    }
    send_matrix(staging, copy);
    done += padded_bytes(copy.to);
  }
  RETURN_IF_ERROR(stream.synchronize());
  return std::move(layout.weights);
}

Result<GpuWeights> random_gpu_weights(const std::shared_ptr<gpu::Device>& device,
                                      gpu::Stream& stream, const gpu::KernelSet& kernels,
                                      const ModelConfig& config, HeadFormat head, uint64_t seed,
                                      const UploadProgress& progress) {
  // Address space for all, memory only for the vectors, which the host fills.
  const LazyBytes memory(blank_weights_bytes(config, head));
  Weights weights = blank_weights(config, head, memory.data());
  fill_random_vectors(weights, seed);
  ASSIGN_OR_RETURN(GpuLayout layout, allocate(device, weights));
  ASSIGN_OR_RETURN(Staging staging, Staging::create(device, stream, kPieceBytesMin));
  RETURN_IF_ERROR(send_vectors(staging, layout));
  std::unordered_map<const MatrixView*, RandomRecipe> recipes;
  for (const MatrixPlace& place : list_matrices(weights)) {
    recipes.emplace(place.view, recipe_of(place, seed));
  }
  const gpu::Kernel fill = kernels.find("random_fill");
  const int64_t total = total_bytes(layout);
  int64_t done = 0;
  for (const MatrixCopy& copy : layout.matrices) {
    if (progress && !progress(done, total)) {
      RETURN_IF_ERROR(stream.synchronize());
      return cancelled();
    }
    const RandomRecipe& recipe = recipes.at(copy.from);
    cuda::RandomFill params{};
    params.data = const_cast<void*>(copy.to.data);
    params.scales = const_cast<float*>(copy.to.scales);
    params.rows = copy.to.rows;
    params.cols = copy.to.cols;
    params.stride = copy.to.stride;
    params.scale_count = copy.to.scales == nullptr
                             ? 0
                             : static_cast<int>((copy.from->rows + kScaleBlock - 1) / kScaleBlock *
                                                copy.from->scale_cols());
    params.format = static_cast<int>(copy.to.format);
    params.amplitude = recipe.amplitude;
    params.key = recipe.key;
    const int64_t quads = int64_t{params.rows} * params.stride / 4;
    const auto blocks = static_cast<uint32_t>(
        std::min<int64_t>((quads + kFillThreads - 1) / kFillThreads, kFillBlocksMax));
    gpu::launch(stream, fill, {.grid = {blocks}, .block = {kFillThreads}}, params);
    done += padded_bytes(copy.to);
  }
  RETURN_IF_ERROR(stream.synchronize());
  return std::move(layout.weights);
}

}  // namespace moray
