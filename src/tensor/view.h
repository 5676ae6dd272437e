// Non-owning views of weights: what a kernel is told about a tensor, and nothing about files.
//
// Invariant: a view never outlives the memory it points to (the checkpoint's mapping or an arena
// owned by the model). Data may be unaligned, as safetensors offsets are; kernels load accordingly.
#pragma once

#include <cstdint>

#include "src/tensor/dtype.h"

namespace moray {

// Rows and columns that share one FP8 scale in the official block layout.
inline constexpr int64_t kScaleBlock = 128;
// Rows of a tile of MatrixView::normal_tiles; its columns are kScaleBlock.
inline constexpr int64_t kNormalTileRows = 4;

// A matrix W [rows, cols], row-major and contiguous, of dtype F32, BF16, F16 or F8_E4M3.
// For F8_E4M3: W[n,k] = fp8[n,k] * scales[n/128, k/128], scales [ceil(rows/128), ceil(cols/128)]
// row-major FP32 (files may hold BF16/F16/F32; they are widened once at load). Otherwise null.
struct MatrixView {
  const void* data = nullptr;
  const float* scales = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::kF32;
  // For F8_E4M3 optionally [ceil(rows/4), ceil(cols/128)]: 1 where the tile of 4 rows and 128
  // columns holds normal numbers only (no zero, subnormal or NaN), which widen faster; 0 elsewhere.
  const uint8_t* normal_tiles = nullptr;

  bool empty() const { return data == nullptr; }
  int64_t scale_cols() const { return (cols + kScaleBlock - 1) / kScaleBlock; }
  // Bytes a multiplication must read: weights plus scales.
  int64_t bytes() const {
    const int64_t scale_rows = (rows + kScaleBlock - 1) / kScaleBlock;
    return rows * cols * dtype_bytes(dtype) + (scales ? scale_rows * scale_cols() * 4 : 0);
  }
};

}  // namespace moray
