// Fills a weight matrix with random numbers; see random_fill.h for the formula. For measurements.
//
// One thread makes four neighbouring elements of a row from one random word; the grid strides over
// the matrix. Bound by the stores.
#include "device/number.cuh"
#include "params.h"
#include "random_fill.h"

namespace moray::cuda {

__device__ __forceinline__ void store_element(const RandomFill& p, int64 at, float unit) {
  if (p.format == int(Format::kFp8)) {
    const uint16 codes = float_e4m3x2(unit * kRandomCodeMax, 0.0f);
    static_cast<uint8*>(p.data)[at] = uint8(codes & 0xff);
  } else if (p.format == int(Format::kBf16)) {
    static_cast<uint16*>(p.data)[at] = float_bf16(unit * p.amplitude);
  } else {
    static_cast<float*>(p.data)[at] = unit * p.amplitude;
  }
}

extern "C" __global__ void __launch_bounds__(256)
    random_fill(const __grid_constant__ RandomFill p) {
  const int64 quads_a_row = p.stride / 4;
  const int64 quads = quads_a_row * p.rows;
  const int64 threads = int64(gridDim.x) * blockDim.x;
  const int64 first = int64(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64 quad = first; quad < quads; quad += threads) {
    const int64 row = quad / quads_a_row;
    const int col = int(quad - row * quads_a_row) * 4;
    uint64 counter = ~0ull;
    uint64 word = 0;
    for (int i = 0; i < 4; ++i) {
      float unit = 0.0f;
      if (col + i < p.cols) {
        const uint64 element = uint64(row) * p.cols + (col + i);
        if (element / 4 != counter) {
          counter = element / 4;
          word = random_word(p.key, counter);
        }
        unit = random_unit(uint32(word >> (16 * (element % 4))) & 0xffffu);
      }
      store_element(p, row * p.stride + (col + i), unit);
    }
  }
  for (int64 i = first; i < p.scale_count; i += threads) p.scales[i] = p.amplitude / kRandomCodeMax;
}

}  // namespace moray::cuda
