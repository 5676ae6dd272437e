// Which tiles of an FP8 matrix hold normal numbers only (MatrixView::normal_tiles).
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/tensor/view.h"

namespace moray {

// Bytes of `matrix`'s map; 0 unless it is FP8.
inline int64_t normal_tile_count(const MatrixView& matrix) {
  if (matrix.dtype != DType::kF8E4M3) return 0;
  return (matrix.rows + kNormalTileRows - 1) / kNormalTileRows * matrix.scale_cols();
}

// Whether all of codes[0..count) are normal E4M3 numbers: magnitudes 0x08 to 0x7e.
inline bool all_normal(const uint8_t* codes, int64_t count) {
  uint8_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<uint8_t>((codes[i] & 0x7f) - 0x08));
  }
  return largest <= 0x7e - 0x08;
}

// Fills tiles[0..normal_tile_count) from the codes; tiles that the matrix fills only in part are
// not normal. One pass over the bytes.
inline void find_normal_tiles(const MatrixView& matrix, uint8_t* tiles) {
  const auto* const codes = static_cast<const uint8_t*>(matrix.data);
  const int64_t slices = matrix.scale_cols();
  std::fill(tiles, tiles + normal_tile_count(matrix), uint8_t{0});
  for (int64_t row = 0; row + kNormalTileRows <= matrix.rows; row += kNormalTileRows) {
    for (int64_t slice = 0; (slice + 1) * kScaleBlock <= matrix.cols; ++slice) {
      bool normal = true;
      for (int64_t r = row; r < row + kNormalTileRows; ++r) {
        normal &= all_normal(codes + r * matrix.cols + slice * kScaleBlock, kScaleBlock);
      }
      tiles[row / kNormalTileRows * slices + slice] = normal;
    }
  }
}

}  // namespace moray
