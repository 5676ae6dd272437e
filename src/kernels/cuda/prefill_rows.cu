// Row-wise stages of a prefill block: embedding, norms, quantisation, sorted copies, the experts'
// weighted sum. A warp takes a row, eight elements a lane at a time, so that no barrier is needed;
// all are bound by the bytes they read and write once.
#include "constants.cuh"
#include "device/number.cuh"
#include "prefill_params.h"

namespace moray::cuda {

namespace {

inline constexpr int kRowThreads = 256;  // eight rows a block
inline constexpr int kRowSteps = (kHidden + 255) / 256;

__device__ int block_row() {
  return blockIdx.x * (kRowThreads / 32) + threadIdx.x / 32;
}
__device__ int lane_column() {
  return threadIdx.x % 32 * 8;
}

// Elements [column, column + 8) of a row of `columns`; those beyond read as zero. `row` is 16-byte
// aligned.
__device__ Pack16 load_8(const Bf16* row, int column, int columns) {
  if (column + 8 <= columns) return *reinterpret_cast<const Pack16*>(row + column);
  Pack16 pack = {};
  for (int i = 0; i < 8; ++i) {
    if (column + i < columns) pack.word[i / 2] |= uint32(row[column + i]) << (i % 2 * 16);
  }
  return pack;
}
__device__ void load_8(const float* row, int column, int columns, float (&values)[8]) {
  if (column + 8 <= columns) {
    const Pack16* packs = reinterpret_cast<const Pack16*>(row + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = __uint_as_float(packs[i / 4].word[i % 4]);
    return;
  }
  for (int i = 0; i < 8; ++i) values[i] = column + i < columns ? row[column + i] : 0;
}
__device__ void store_8(Bf16* row, int column, int columns, const Pack16& pack) {
  if (column + 8 <= columns) {
    *reinterpret_cast<Pack16*>(row + column) = pack;
    return;
  }
  for (int i = 0; i < 8; ++i) {
    if (column + i < columns) row[column + i] = Bf16(pack.word[i / 2] >> (i % 2 * 16));
  }
}
__device__ void unpack_8(const Pack16& pack, float (&values)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = bf16_low(pack.word[i]);
    values[2 * i + 1] = bf16_high(pack.word[i]);
  }
}
__device__ Pack16 pack_8(const float (&values)[8]) {
  Pack16 pack;
#pragma unroll
  for (int i = 0; i < 4; ++i) pack.word[i] = float_bf16x2(values[2 * i], values[2 * i + 1]);
  return pack;
}

// Quantises a warp's 256 columns from `first` on: the 16 lanes of each half share a scale.
__device__ void quantise_256(const QuantisedRows& out, int row, int first,
                             const float (&values)[8]) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(values[i]));
#pragma unroll
  for (int step = 8; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  }
  largest = fmaxf(largest, 0x1p-100f);  // of zeros: codes 0 and a finite quotient below
  const int column = first + lane_column();
  if (column >= out.cols) return;
  const float inverse = 448 / largest;
  uint2 codes;
  codes.x = float_e4m3x2(values[0] * inverse, values[1] * inverse) |
            uint32(float_e4m3x2(values[2] * inverse, values[3] * inverse)) << 16;
  codes.y = float_e4m3x2(values[4] * inverse, values[5] * inverse) |
            uint32(float_e4m3x2(values[6] * inverse, values[7] * inverse)) << 16;
  *reinterpret_cast<uint2*>(out.codes + int64(row) * out.cols + column) = codes;
  if (threadIdx.x % 16 == 0) {
    out.scales[int64(column / kScaleColumns) * out.scale_stride + row] = largest / 448;
  }
}

__device__ float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

}  // namespace

// Bytes: 2 H read and 2 H written a token.
extern "C" __global__ void __launch_bounds__(kRowThreads)
    embed_rows(const __grid_constant__ EmbedRowsParams p) {
  const int row = block_row();
  if (row >= p.count) return;
  const uint32 token = p.tokens[row];
  const Bf16* from = p.table + (token < uint32(kVocabRows) ? int64(token) : 0) * p.table_stride;
  for (int c = lane_column(); c < kHidden; c += 256) {
    store_8(p.out + int64(row) * kHidden, c, kHidden, load_8(from, c, kHidden));
  }
}

// Bytes: 2 H read, 2 H and/or H written a token.
extern "C" __global__ void __launch_bounds__(kRowThreads)
    norm_rows(const __grid_constant__ NormRowsParams p) {
  const int row = block_row();
  if (row >= p.count) return;
  float x[kRowSteps][8];
  float squares = 0;
#pragma unroll
  for (int s = 0; s < kRowSteps; ++s) {
    unpack_8(load_8(p.x + int64(row) * kHidden, s * 256 + lane_column(), kHidden), x[s]);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(x[s][i], x[s][i], squares);
  }
  const float factor = 1 / sqrtf(warp_sum(squares) / kHidden + kNormEps);
#pragma unroll
  for (int s = 0; s < kRowSteps; ++s) {
    const int column = s * 256 + lane_column();
    float y[8];
    float weight[8];
    load_8(p.weight, column, kHidden, weight);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      y[i] = kZeroCentredNorms ? x[s][i] * factor * (1 + weight[i])
                               : weight[i] * round_bf16(x[s][i] * factor);
    }
    const Pack16 rounded = pack_8(y);
    if (p.out != nullptr) store_8(p.out + int64(row) * p.out_stride, column, kHidden, rounded);
    if (p.quantised.codes != nullptr) {
      unpack_8(rounded, y);
      quantise_256(p.quantised, row, s * 256, y);
    }
  }
}

// Bytes: 2 cols read, cols written a row.
extern "C" __global__ void __launch_bounds__(kRowThreads)
    quantise_rows(const __grid_constant__ QuantiseRowsParams p) {
  const int row = block_row();
  if (row >= p.count) return;
  for (int first = 0; first < p.quantised.cols; first += 256) {
    float values[8];
    const int column = first + lane_column();
    unpack_8(load_8(p.x + int64(row) * p.x_stride, column, p.quantised.cols), values);
    quantise_256(p.quantised, row, first, values);
  }
}

// Bytes: cols written a sorted row, read mostly from L2.
extern "C" __global__ void __launch_bounds__(kRowThreads)
    gather_rows(const __grid_constant__ GatherRowsParams p) {
  const int row = block_row();
  if (row >= p.count) return;
  const int from = p.sorted[row] / p.top_k;
  const Pack16* codes = reinterpret_cast<const Pack16*>(p.x.codes + int64(from) * p.x.cols);
  Pack16* out = reinterpret_cast<Pack16*>(p.out.codes + int64(row) * p.x.cols);
  for (int i = threadIdx.x % 32; i < p.x.cols / 16; i += 32) out[i] = codes[i];
  for (int i = threadIdx.x % 32; i < p.x.cols / kScaleColumns; i += 32) {
    p.out.scales[int64(i) * p.out.scale_stride + row] =
        p.x.scales[int64(i) * p.x.scale_stride + from];
  }
}

// Bytes: 2 H (top_k + 2) read, 2 H written a token.
extern "C" __global__ void __launch_bounds__(kRowThreads)
    combine_rows(const __grid_constant__ CombineRowsParams p) {
  const int token = block_row();
  if (token >= p.tokens) return;
  float weights[kTopK];
#pragma unroll
  for (int i = 0; i < kTopK; ++i) weights[i] = __ldg(p.expert_weights + int64(token) * kTopK + i);
  const float shared_weight = p.shared_out != nullptr ? __ldg(p.shared_weight + token) : 0.0f;
  Bf16* residual = p.residual + int64(token) * kHidden;
  const Bf16* outs = p.out + int64(token) * kTopK * kHidden;
  for (int column = lane_column(); column < kHidden; column += 256) {
    float sum[8];
    unpack_8(load_8(residual, column, kHidden), sum);
    Pack16 terms[kTopK];
#pragma unroll
    for (int i = 0; i < kTopK; ++i) terms[i] = load_8(outs + i * kHidden, column, kHidden);
#pragma unroll
    for (int i = 0; i < kTopK; ++i) {
      float term[8];
      unpack_8(terms[i], term);
#pragma unroll
      for (int c = 0; c < 8; ++c) sum[c] = fmaf(weights[i], term[c], sum[c]);
    }
    if (p.shared_out != nullptr) {
      float term[8];
      unpack_8(load_8(p.shared_out + int64(token) * kHidden, column, kHidden), term);
#pragma unroll
      for (int c = 0; c < 8; ++c) sum[c] = fmaf(shared_weight, term[c], sum[c]);
    }
    store_8(residual, column, kHidden, pack_8(sum));
  }
}

}  // namespace moray::cuda
