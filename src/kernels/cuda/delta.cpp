#include "src/kernels/cuda/delta.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/gpu/program.h"
#include "src/kernels/cuda/delta_prefill_params.h"
#include "src/kernels/cuda/delta_step_shape.h"

namespace moray::cuda {

namespace {

constexpr int64_t kChunk = kDeltaChunkTokens;
constexpr uint32_t kPrepareThreads = 256;  // as the kernel declares

void check_shape(const DeltaShape& shape) {
  CHECK(shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0, shape.key_heads,
        shape.value_heads);
  CHECK(shape.key_dim > 0 && shape.key_dim <= 128 && shape.key_dim % 4 == 0, shape.key_dim);
  CHECK(shape.value_dim > 0 && shape.value_dim <= 128 && shape.value_dim % 4 == 0, shape.value_dim);
  CHECK(shape.taps >= 1 && shape.taps <= 8, shape.taps);
  CHECK(shape.arch == 89 || shape.arch == 90 || shape.arch == 120, shape.arch);
}

// Lays arrays behind each other, every one 256-byte aligned. With no base it only measures.
class Carver {
 public:
  explicit Carver(char* base) : base_(base) {}

  template <typename T>
  T* take(int64_t count) {
    char* const at = base_ == nullptr ? nullptr : base_ + bytes_;
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return reinterpret_cast<T*>(at);
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  int64_t bytes_ = 0;
};

DeltaState carve_state(const DeltaShape& shape, Carver& carver) {
  DeltaState state{};
  state.conv_tail = carver.take<float>((shape.taps - 1 + kChunk) * shape.channels());
  state.s = carver.take<float>(int64_t{shape.value_heads} * shape.key_dim * shape.value_dim);
  state.keys = carver.take<float>(shape.key_heads * kChunk * shape.key_dim);
  state.writes = carver.take<float>(shape.value_heads * kChunk * shape.value_dim);
  state.log_decay = carver.take<float>(shape.value_heads * kChunk);
  return state;
}

// Chunks that a block of tokens can touch: the open one before it, and one that it begins inside.
int64_t chunks_max(int64_t tokens) {
  return (tokens + kChunk - 1) / kChunk + 1;
}

void carve_workspace(const DeltaShape& shape, int64_t chunks, Carver& carver, DeltaBlock& block) {
  const int64_t key_tiles = chunks * shape.key_heads, tiles = chunks * shape.value_heads;
  const int64_t key_tile = kChunk * delta_tile_width(shape.key_dim);
  block.queries = carver.take<unsigned short>(key_tiles * key_tile);
  block.keys = carver.take<unsigned short>(key_tiles * key_tile);
  block.inverse = carver.take<unsigned short>(tiles * kChunk * kChunk);
  block.mix = carver.take<unsigned short>(tiles * kChunk * kChunk);
  block.values = carver.take<unsigned short>(tiles * kChunk * delta_tile_width(shape.value_dim));
  block.value_units = carver.take<float>(tiles);
  block.gates = carver.take<float>(tiles * kGateRows * kChunk);
  block.last_keys = carver.take<float>(shape.key_heads * kChunk * shape.key_dim);
  const int64_t groups = tiles * delta_tile_width(shape.value_dim) / 16;
  block.states = carver.take<unsigned short>(groups * 16 * delta_tile_width(shape.key_dim));
  block.writes = carver.take<unsigned short>(groups * 16 * kChunk);
  block.units = carver.take<float>(groups * 2);
}

}  // namespace

std::vector<std::string> delta_programs() {
  return {"delta_step.cu", "delta_prepare.cu", "delta_scan.cu", "delta_finish.cu"};
}

DeltaKernels DeltaKernels::find(const gpu::KernelSet& kernels, const DeltaShape& shape) {
  check_shape(shape);
  return {.step = kernels.find("delta_step"),
          .prepare = kernels.find("delta_prepare"),
          .scan = kernels.find("delta_scan"),
          .finish = kernels.find("delta_finish"),
          .shape = shape};
}

int64_t delta_state_bytes(const DeltaShape& shape) {
  Carver carver(nullptr);
  carve_state(shape, carver);
  return carver.bytes();
}

DeltaState delta_state_at(const DeltaShape& shape, char* base) {
  Carver carver(base);
  return carve_state(shape, carver);
}

int64_t delta_arrivals_bytes(const DeltaShape& shape) {
  return shape.key_heads * static_cast<int64_t>(sizeof(int));
}

int64_t delta_prefill_workspace_bytes(const DeltaShape& shape, int64_t tokens) {
  Carver carver(nullptr);
  DeltaBlock block{};
  carve_workspace(shape, chunks_max(tokens), carver, block);
  return carver.bytes();
}

void delta_step(gpu::Stream& stream, const DeltaKernels& kernels, const DeltaStepParams& params,
                bool programmatic) {
  CHECK(params.tokens >= 1 && params.tokens <= kStepTokensMax, params.tokens);
  const DeltaShape& shape = kernels.shape;
  const int arch = shape.arch * 10;
  const auto slices = static_cast<uint32_t>(delta_step_slices(arch, shape.value_dim));
  const auto warps = static_cast<uint32_t>(delta_step_warps(arch, shape.value_dim));
  gpu::launch(stream, kernels.step,
              {.grid = {slices, static_cast<uint32_t>(shape.value_heads)},
               .block = {32 * warps},
               .cluster = static_cast<int>(slices),
               .programmatic = programmatic},
              params);
}

void delta_prefill(gpu::Stream& stream, const DeltaKernels& kernels,
                   const DeltaPrefillParams& params) {
  CHECK(params.tokens >= 1 && params.position >= 0, params.tokens, params.position);
  const DeltaShape& shape = kernels.shape;
  const int64_t chunk = params.position > 0 ? (params.position - 1) / kChunk : 0;
  const int64_t last_chunk = (params.position + params.tokens - 1) / kChunk;
  DeltaBlock block{};
  block.call = params;
  block.first_chunk = static_cast<int>(chunk * kChunk);
  block.chunks = static_cast<int>(last_chunk - chunk + 1);
  CHECK(block.chunks <= chunks_max(params.tokens), block.chunks, params.tokens);
  Carver carver(params.workspace);
  carve_workspace(shape, chunks_max(params.tokens), carver, block);

  const auto chunks = static_cast<uint32_t>(block.chunks);
  gpu::launch(
      stream, kernels.prepare,
      {.grid = {chunks, static_cast<uint32_t>(shape.key_heads)}, .block = {kPrepareThreads}},
      block);
  const auto columns = static_cast<uint32_t>(delta_scan_columns(shape.value_dim));
  const auto value_tile = static_cast<uint32_t>(delta_tile_width(shape.value_dim));
  gpu::launch(stream, kernels.scan,
              {.grid = {value_tile / columns, static_cast<uint32_t>(shape.value_heads)},
               .block = {2 * columns},
               .shared_bytes = delta_scan_shared_bytes(shape.key_dim, shape.value_dim)},
              block);
  gpu::launch(
      stream, kernels.finish,
      {.grid = {chunks + 1, static_cast<uint32_t>(shape.value_heads)}, .block = {2 * value_tile}},
      block);
}

}  // namespace moray::cuda
