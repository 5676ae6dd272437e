// Helpers of the ops' outer loops: carving workspace and cutting work into units.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "src/base/check.h"
#include "src/kernels/cpu/kernels.h"
#include "src/kernels/ops.h"

namespace moray::cpu {

inline constexpr int64_t kCacheLineFloats = 16;

constexpr int64_t divide_up(int64_t amount, int64_t unit) {
  return (amount + unit - 1) / unit;
}
constexpr int64_t round_up(int64_t amount, int64_t unit) {
  return divide_up(amount, unit) * unit;
}

// K as products read it: whole slices of 128.
constexpr int64_t padded_k(int64_t k) {
  return round_up(k, kScaleBlock);
}

// Hands out 64-byte aligned pieces of a workspace, in order; running out is a bug.
class Carver {
 public:
  explicit Carver(std::span<float> workspace) : at_(workspace.data()), end_(at_) {
    end_ += workspace.size();
    const auto misfit = reinterpret_cast<uintptr_t>(at_) % 64 / sizeof(float);
    if (misfit != 0 && !workspace.empty()) at_ += kCacheLineFloats - misfit;
  }
  // `count` elements of T (at most 4 bytes each).
  template <typename T>
  T* take(int64_t count) {
    static_assert(sizeof(T) <= sizeof(float));
    const int64_t bytes = count * int64_t{sizeof(T)};
    const int64_t floats = round_up(divide_up(bytes, sizeof(float)), kCacheLineFloats);
    CHECK(end_ - at_ >= floats, "workspace too small", end_ - at_, floats);
    T* const piece = reinterpret_cast<T*>(at_);
    at_ += floats;
    return piece;
  }

 private:
  float* at_;
  float* end_;
};

// Floats that take<T>(count) uses, T of 4 bytes; sums of these plus kCacheLineFloats suffice.
constexpr int64_t carved(int64_t count) {
  return round_up(count, kCacheLineFloats);
}

constexpr int weight_kind(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return kWeightF32;
    case DType::kF16:
      return kWeightF16;
    case DType::kBF16:
      return kWeightBf16;
    case DType::kF8E4M3:
      return kWeightFp8;
    default:
      return -1;
  }
}

// The engine a weight is multiplied by: BF16 products where the machine has them, the precision
// allows them and the weight widens to BF16 exactly.
inline Engine engine_for(const Kernels& kernels, Precision precision, DType dtype) {
  if (precision != Precision::kBfloat16 || !kernels.has_bf16_products) return Engine::kF32;
  if (dtype == DType::kF8E4M3) return Engine::kBf16Dealt;
  return dtype == DType::kBF16 ? Engine::kBf16 : Engine::kF32;
}

constexpr int64_t element_bytes(Engine engine) {
  return engine == Engine::kF32 ? 4 : 2;
}

// Packs one row of k elements, padded, as an engine reads it.
inline void pack_row(const Kernels& kernels, Engine engine, const float* x, int64_t k, void* out) {
  if (engine == Engine::kF32) {
    kernels.pack_f32(x, k, static_cast<float*>(out), padded_k(k));
  } else if (engine == Engine::kBf16) {
    kernels.pack_bf16(x, k, static_cast<uint16_t*>(out), padded_k(k));
  } else {
    kernels.pack_bf16_dealt(x, k, static_cast<uint16_t*>(out), padded_k(k));
  }
}

// The input of a product as each engine in use reads it; null where none does. FP32 rows without
// padding are read where they are.
struct PackedInput {
  const void* rows[kEngines] = {};
  int64_t stride[kEngines] = {};  // elements
};

// The job of one matrix's rows with everything but input and output filled in.
inline LinearJob linear_job(const MatrixView& weight, int64_t row_begin, int64_t row_end) {
  LinearJob job{};
  job.weight = weight.data;
  job.scales = weight.scales;
  job.scale_cols = weight.scale_cols();
  job.normal_tiles = weight.normal_tiles;
  job.k = weight.cols;
  job.row_begin = row_begin;
  job.row_end = row_end;
  return job;
}

inline void run_linear(const Kernels& kernels, Engine engine, DType dtype, const LinearJob& job) {
  kernels.linear[static_cast<int>(engine)][weight_kind(dtype)](job);
}

// Rows a unit takes so that each thread gets about four units: enough to even out a slow core,
// few enough that claiming them (about 0.1 us) does not show.
inline int64_t rows_per_unit(int64_t rows, int threads, int64_t most) {
  return std::clamp(round_up(divide_up(rows, int64_t{threads} * 4), kLinearTileRows),
                    kLinearTileRows, most);
}

}  // namespace moray::cpu
