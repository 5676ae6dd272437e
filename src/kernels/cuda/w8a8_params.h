// Parameters of the W8A8 kernels: quantised rows, tiles of experts, boxes for bulk copies.
//
// What the kernels compute is in w8a8.h. Shapes: columns a multiple of 128, weight rows of 8, inner
// widths of experts of 128.
#pragma once

#include "params.h"

namespace moray::cuda {

inline constexpr int kScaleColumns = 128;  // share one scale, and one promotion to FP32
inline constexpr int kW8a8TileRows = 128;  // activation rows of a tile
inline constexpr int kW8a8TargetsMax = 4;

// Blocks of the two main loops: a stage of their rings holds a slice of 128 activation rows and of
// 128 weight rows; how many there are fills shared memory (227 KiB on sm_90, 99 KiB on the others).
inline constexpr int kW8a8StageBytes = 2 * kW8a8TileRows * kScaleColumns;
struct W8a8Block {
  int threads, stages, shared_bytes;
};
// After the stages the ring's barriers; the stages start at a multiple of 1024 bytes.
inline constexpr int kW8a8BarrierBytes = 128;
inline constexpr W8a8Block kWgmmaBlock = {384, 7, 7 * kW8a8StageBytes + kW8a8BarrierBytes + 1024};
inline constexpr W8a8Block kMmaBlock = {256, 3, 3 * kW8a8StageBytes + 128};
static_assert(kWgmmaBlock.shared_bytes <= 227 * 1024);
static_assert(kMmaBlock.shared_bytes <= 99 * 1024);

// The driver's description of a box of memory for bulk copies (CUtensorMap), sm_90 only. All maps
// here cut bytes [plane, row, column] into boxes of 64 rows by 128 columns, 128-byte swizzle.
struct alignas(64) TensorMap {
  unsigned long long words[16] = {};
};

// Activations, quantised per row and 128 columns: value(r, c) = codes[r * cols + c] *
// scales[c / 128 * scale_stride + r], scale = (largest magnitude) / 448.
struct QuantisedRows {
  unsigned char* codes = nullptr;  // E4M3, 16-byte aligned
  float* scales = nullptr;         // [cols / 128, scale_stride]
  int rows = 0, cols = 0;          // rows bounds what may be read, not what is computed
  int scale_stride = 0;            // >= rows
};

// Rows [first_row, first_row + rows) of the sorted activations belong to `expert`.
struct ExpertTile {
  int expert, first_row, rows;  // rows 1..kW8a8TileRows
};

enum class W8a8Output : int { kBf16 = 0, kF32 = 1, kAddBf16 = 2 };

// out[t, n], row-major with out_stride elements a row (a multiple of 8); kAddBf16: out += y, one
// rounding. Written as soon as computed, so out aliases no input.
struct W8a8Target {
  Matrix weight = {};
  void* out = nullptr;
  int out_stride = 0;
  W8a8Output output = W8a8Output::kBf16;
};

struct W8a8Dense {
  TensorMap x_map = {}, weight_maps[kW8a8TargetsMax] = {};
  QuantisedRows x = {};
  W8a8Target targets[kW8a8TargetsMax] = {};
  int target_count = 0;
  int tokens = 0;  // rows computed
};

// inner[r] = quantised(silu(gate x[r]) * (up x[r])), products and SiLU in FP32. I a multiple of
// 128.
struct W8a8GateUp {
  TensorMap x_map = {}, gate_map = {}, up_map = {};
  QuantisedRows x = {};  // sorted by expert
  ExpertRecords experts = {};
  int expert_count = 0;
  const ExpertTile* tiles = nullptr;  // null: one expert, record 0, over rows [0, tokens)
  const int* tile_count = nullptr;    // in device memory; not read when tiles is null
  int tokens = 0;
  QuantisedRows inner = {};  // written, rows as x
};

// out[out_row[r]] = BF16(down inner[r]).
struct W8a8Down {
  TensorMap inner_map = {}, down_map = {};
  QuantisedRows inner = {};  // sorted by expert
  ExpertRecords experts = {};
  int expert_count = 0;
  const ExpertTile* tiles = nullptr;
  const int* tile_count = nullptr;
  int tokens = 0;
  const int* out_row = nullptr;  // null: r itself
  void* out = nullptr;           // BF16
  int columns = 0;               // H, the rows of `down`
  int out_stride = 0;            // elements, a multiple of 8
};

}  // namespace moray::cuda
