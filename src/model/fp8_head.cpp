#include "src/model/fp8_head.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "src/tensor/normal_tiles.h"

namespace moray {
namespace {

constexpr float kCodeMax = 448.0f;
constexpr int64_t kLineBytes = 64;

int64_t whole_lines(int64_t bytes) {
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

int64_t blocks_of(int64_t count) {
  return (count + kScaleBlock - 1) / kScaleBlock;
}

// Codes, scales and normal tiles, one after the other.
struct Places {
  int64_t scales, tiles, end;
  Places(int64_t rows, int64_t cols)
      : scales(whole_lines(rows * cols)),
        tiles(scales + whole_lines(4 * blocks_of(rows) * blocks_of(cols))),
        end(tiles + (rows + kNormalTileRows - 1) / kNormalTileRows * blocks_of(cols)) {}
};

// `count` neighbouring elements from `first` on. Data may be unaligned.
template <typename Element, typename Convert>
void widen(const void* data, int64_t first, int64_t count, Convert convert, float* out) {
  const char* from = static_cast<const char*>(data) + first * int64_t{sizeof(Element)};
  for (int64_t i = 0; i < count; ++i, from += sizeof(Element)) {
    Element element;
    std::memcpy(&element, from, sizeof(element));
    out[i] = convert(element);
  }
}
void widen(const MatrixView& matrix, int64_t first, int64_t count, float* out) {
  switch (matrix.dtype) {
    case DType::kBF16:
      return widen<uint16_t>(matrix.data, first, count, bf16_to_float, out);
    case DType::kF16:
      return widen<uint16_t>(matrix.data, first, count, f16_to_float, out);
    default:
      CHECK(matrix.dtype == DType::kF32, dtype_name(matrix.dtype));
      return widen<float>(
          matrix.data, first, count, [](float value) { return value; }, out);
  }
}

// The blocks of rows [row, row + 128).
void quantise_rows(const MatrixView& from, int64_t row, uint8_t* codes, float* scales) {
  const int64_t rows = std::min(kScaleBlock, from.rows - row);
  std::array<float, kScaleBlock * kScaleBlock> block;
  for (int64_t col = 0; col < from.cols; col += kScaleBlock) {
    const int64_t cols = std::min(kScaleBlock, from.cols - col);
    float largest = 0;
    for (int64_t r = 0; r < rows; ++r) {
      float* values = block.data() + r * kScaleBlock;
      widen(from, (row + r) * from.cols + col, cols, values);
      for (int64_t i = 0; i < cols; ++i) largest = std::max(largest, std::fabs(values[i]));
    }
    const float scale = largest / kCodeMax;
    const float inverse = largest > 0 ? kCodeMax / largest : 0.0f;
    for (int64_t r = 0; r < rows; ++r) {
      uint8_t* to = codes + (row + r) * from.cols + col;
      for (int64_t i = 0; i < cols; ++i) {
        to[i] = float_to_f8e4m3(block[static_cast<size_t>(r * kScaleBlock + i)] * inverse);
      }
    }
    scales[row / kScaleBlock * blocks_of(from.cols) + col / kScaleBlock] = scale;
  }
}

}  // namespace

int64_t fp8_head_bytes(const ModelConfig& config) {
  return Places(config.vocab_rows, config.hidden).end;
}

std::shared_ptr<const Weights> with_fp8_head(const Weights& weights, ThreadPool& threads) {
  auto quantised = std::make_shared<Weights>(weights);
  const MatrixView& from = weights.head;
  if (from.dtype == DType::kF8E4M3) return quantised;
  const Places places(from.rows, from.cols);
  const auto memory = std::make_shared<LazyBytes>(places.end);
  auto* codes = reinterpret_cast<uint8_t*>(memory->data());
  auto* scales = reinterpret_cast<float*>(memory->data() + places.scales);
  threads.run(blocks_of(from.rows),
              [&](int64_t block, int) { quantise_rows(from, block * kScaleBlock, codes, scales); });
  MatrixView& head = quantised->head;
  head = {codes, scales, from.rows, from.cols, DType::kF8E4M3};
  auto* tiles = reinterpret_cast<uint8_t*>(memory->data() + places.tiles);
  find_normal_tiles(head, tiles);
  head.normal_tiles = tiles;
  quantised->head_bytes = memory;
  return quantised;
}

}  // namespace moray
