// Where every matrix and vector of a model lies in device memory; gpu_weights.h says what for.
//
// Invariant: a pure function of the shapes and of where the three arenas begin; with null arenas
// the sizes are the same and the addresses mean nothing.
#pragma once

#include <array>
#include <vector>

#include "src/model/gpu_weights.h"

namespace moray {

// Arenas of device memory: what every token reads, routed experts, the two vocabulary tables.
enum class GpuArena : uint8_t { kLayers, kExperts, kTables };
inline constexpr size_t kGpuArenas = 3;

struct MatrixCopy {
  const MatrixView* from;
  cuda::Matrix to;
};
struct VectorCopy {
  std::span<const float> from;
  const float* to;
};

struct GpuLayout {
  GpuWeights weights;                       // without memory
  std::array<int64_t, kGpuArenas> bytes{};  // of each block
  std::vector<MatrixCopy> matrices;         // in the order of a forward pass
  std::vector<VectorCopy> vectors;
};

GpuLayout lay_out(const Weights& weights, const std::array<char*, kGpuArenas>& arenas);

// Bytes of a matrix with padded rows, without its scales.
int64_t padded_bytes(const cuda::Matrix& matrix);
int64_t element_bytes(cuda::Format format);

}  // namespace moray
