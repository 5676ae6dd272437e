// Prefill of the gated delta net, first kernel: all that a chunk can know before its state.
//
// A block is a chunk of one key head and the value heads that share it. It convolves and normalises
// q and k, convolves v, sums the gates, multiplies keys with keys and queries (tensor cores, F16
// operands, FP32 sums) and inverts I + L by substitution in FP32, a thread a column. What it writes
// is declared in delta_prefill_params.h.
#include "src/kernels/cuda/delta_math.cuh"
#include "src/kernels/cuda/delta_prefill.cuh"
#include "src/kernels/cuda/device/half.cuh"
#include "src/kernels/cuda/device/mma.cuh"
#include "src/kernels/cuda/device/tile.cuh"

namespace moray::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kRun = kChunk / kWarps;  // neighbouring tokens that a warp convolves
constexpr int kHeadsTogether = 2;      // value heads whose inverses are computed at once
constexpr float kHalfTarget = 10;      // values are scaled so that the largest is about 2^this
constexpr int kUnitBits = 60;          // exponents of units stay within plus and minus this

struct Tiles {
  alignas(16) uint16 keys[kChunk * kKeyTile];  // in the order of tile_offset
  alignas(16) uint16 queries[kChunk * kKeyTile];
};
struct Shared {
  union {
    Tiles tiles;
    alignas(16) float lower[kHeadsTogether][kChunk][kChunk];  // L
  };
  float decay[kRepeat][kChunk];  // G
  float beta[kRepeat][kChunk];   // 0 for pending and absent tokens
  uint32 largest[kWarps];
};

struct Place {
  int chunk, position, key_head;  // position of the chunk's first token
  int warp, lane;
};

// silu of the convolution of four channels for the warp's run of tokens.
__device__ void convolve(const DeltaBlock& b, int first_position, int channel,
                         float (&out)[kRun][4]) {
  float weight[4][kConvTaps];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
#pragma unroll
    for (int j = 0; j < kConvTaps; ++j) {
      weight[c][j] = b.call.weights.conv[(channel + c) * kConvTaps + j];
    }
  }
  float input[kRun + kPast][4];
  load_inputs(b, first_position - kPast, channel, input);
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kConvTaps; ++j) sum = fmaf(weight[c][j], input[i + j][c], sum);
      out[i][c] = silu(sum);
    }
  }
}

__device__ uint2 pack_four(const float (&x)[4]) {
  return make_uint2(float_f16x2(x[0], x[1]), float_f16x2(x[2], x[3]));
}

// q (which = 0) or k (1) of the warp's tokens to shared and global tiles.
__device__ void prepare_vectors(const DeltaBlock& b, const Place& at, int which, Shared& shared) {
  const int element = 4 * at.lane, first_slot = at.warp * kRun;
  float x[kRun][4] = {};
  if (element < kKeyDim) {
    const int channel = (which * kKeyHeads + at.key_head) * kKeyDim + element;
    convolve(b, at.position + first_slot, channel, x);
  }
  uint16* const shared_tile = which == 0 ? shared.tiles.queries : shared.tiles.keys;
  uint16* const tile = (which == 0 ? b.queries : b.keys) +
                       (int64(at.chunk) * kKeyHeads + at.key_head) * kChunk * kKeyTile;
  const bool is_last = which == 1 && at.chunk == b.chunks - 1;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const int slot = first_slot + i, position = at.position + slot;
    float squares = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; ++c) squares = fmaf(x[i][c], x[i][c], squares);
    float factor = rsqrtf(warp_sum(squares) + 1e-6f);
    if (which == 0) factor *= rsqrtf(static_cast<float>(kKeyDim));
    if (!is_present(b, position)) factor = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; ++c) x[i][c] = factor == 0.0f ? 0.0f : x[i][c] * factor;
    const int row = at.key_head * kChunk + slot;
    if (which == 1 && is_pending(b, position) && element < kKeyDim) {
      const float4 old =
          *reinterpret_cast<const float4*>(b.call.state.keys + row * kKeyDim + element);
      x[i][0] = old.x;
      x[i][1] = old.y;
      x[i][2] = old.z;
      x[i][3] = old.w;
    }
    if (element < kKeyTile) {
      const uint2 pack = pack_four(x[i]);
      const uint32 place = tile_offset<kKeyTile>(slot, element / 8) / 2 + element % 8;
      *reinterpret_cast<uint2*>(tile + place) = pack;
      *reinterpret_cast<uint2*>(shared_tile + place) = pack;
    }
    if (is_last && element < kKeyDim) {
      *reinterpret_cast<float4*>(b.last_keys + row * kKeyDim + element) =
          make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
    }
  }
}

// Gates of one value head, a warp; a lane has two neighbouring tokens.
__device__ void prepare_gates(const DeltaBlock& b, const Place& at, int repeat, Shared& shared) {
  const int head = at.key_head * kRepeat + repeat;
  const float* const old = b.call.state.log_decay + head * kChunk;
  const int pending = max(0, b.call.position - at.position);
  const float base = pending > 0 ? old[min(pending, kChunk) - 1] : 0.0f;
  float g[2], beta[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int position = at.position + 2 * at.lane + i;
    g[i] = beta[i] = 0.0f;
    if (is_present(b, position)) {
      const int64 index = int64(position - b.call.position) * kValueHeads + head;
      g[i] =
          log_decay_of(b.call.a[index], b.call.weights.a_log[head], b.call.weights.dt_bias[head]);
      beta[i] = sigmoid(b.call.b[index]);
    }
  }
  float sum = g[0] + g[1];
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float below = __shfl_up_sync(0xffffffffu, sum, offset);
    if (at.lane >= offset) sum += below;
  }
  float before = __shfl_up_sync(0xffffffffu, sum, 1);
  if (at.lane == 0) before = 0.0f;
  float total[2] = {base + before + g[0], base + before + g[0] + g[1]};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (is_pending(b, at.position + 2 * at.lane + i)) total[i] = old[2 * at.lane + i];
  }
  const float last = __shfl_sync(0xffffffffu, total[1], 31);
  float* const gates = b.gates + (int64(at.chunk) * kValueHeads + head) * kGateRows * kChunk;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int slot = 2 * at.lane + i;
    shared.decay[repeat][slot] = total[i];
    shared.beta[repeat][slot] = beta[i];
    gates[kLogDecayRow * kChunk + slot] = total[i];
    gates[kStateFactorRow * kChunk + slot] = beta[i] * expf(total[i]);
    gates[kDecayRow * kChunk + slot] = expf(total[i]);
    gates[kRemainingRow * kChunk + slot] = expf(last - total[i]);
  }
}

// The exponent that takes a largest magnitude (its bits) to about 2^kHalfTarget.
__device__ int scale_exponent(uint32 largest_bits) {
  const int exponent = static_cast<int>(largest_bits >> 23) - 127;
  return max(-kUnitBits, min(kUnitBits, static_cast<int>(kHalfTarget) - exponent));
}

// beta v of one value head (old writes for pending tokens) to the global tile.
__device__ void prepare_values(const DeltaBlock& b, const Place& at, int repeat, Shared& shared) {
  const int head = at.key_head * kRepeat + repeat;
  const int element = 4 * at.lane, first_slot = at.warp * kRun;
  float v[kRun][4] = {};
  if (element < kValueDim) {
    const int channel = 2 * kKeyHeads * kKeyDim + head * kValueDim + element;
    convolve(b, at.position + first_slot, channel, v);
  }
  uint32 largest = 0;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const int slot = first_slot + i;
    const bool old = is_pending(b, at.position + slot) && element < kValueDim;
    const float beta = shared.beta[repeat][slot];
    const float* const write = b.call.state.writes + (head * kChunk + slot) * kValueDim + element;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      v[i][c] = old ? write[c] : beta == 0.0f ? 0.0f : v[i][c] * beta;
      largest = max(largest, __float_as_uint(fabsf(v[i][c])));
    }
  }
  largest = __reduce_max_sync(0xffffffffu, largest);
  __syncthreads();  // the head before has read shared.largest
  if (at.lane == 0) shared.largest[at.warp] = largest;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; ++i) largest = max(largest, shared.largest[i]);
  const int exponent = scale_exponent(largest);
  const float scale = power_of_two(exponent);
  const int64 place = int64(at.chunk) * kValueHeads + head;
  if (threadIdx.x == 0) b.value_units[place] = power_of_two(-exponent);
  if (element >= kValueTile) return;
  const int column = element % kScanColumns;
  uint16* const tile = b.values + place * kChunk * kValueTile + (element - column) * kChunk;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c) v[i][c] *= scale;
    const uint32 at_tile = tile_offset<kScanColumns>(first_slot + i, column / 8) / 2 + column % 8;
    *reinterpret_cast<uint2*>(tile + at_tile) = pack_four(v[i]);
  }
}

// A warp's part of K K^T and Q K^T: sixteen rows from first_row on, 32 columns from first_column.
struct Products {
  int first_row, first_column;
  float keys[4][4], queries[4][4];  // [block of 8 columns][accumulators of mma.cuh]

  __device__ int row(int lane, int i) const { return first_row + lane / 4 + i / 2 * 8; }
  __device__ int column(int lane, int block, int i) const {
    return first_column + block * 8 + lane % 4 * 2 + i % 2;
  }
};

__device__ void multiply(const Place& at, const Shared& shared, Products& out) {
  out.first_row = at.warp % 4 * 16;
  out.first_column = at.warp / 4 * 32;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out.keys[n][i] = out.queries[n][i] = 0.0f;
  }
  if (out.first_column > out.first_row) return;  // all of it above the diagonal
  const uint32 keys = shared_address(shared.tiles.keys);
  const uint32 queries = shared_address(shared.tiles.queries);
  const int lane = at.lane;
#pragma unroll
  for (int k = 0; k < kKeyTile; k += 16) {
    const uint32 rows = tile_offset<kKeyTile>(out.first_row + lane % 16, k / 8 + lane / 16);
    uint32 key_rows[4], query_rows[4];
    load_blocks(key_rows, keys + rows);
    load_blocks(query_rows, queries + rows);
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      const int token = out.first_column + n * 8 + lane / 16 * 8 + lane % 8;
      uint32 columns[4];
      load_blocks(columns, keys + tile_offset<kKeyTile>(token, k / 8 + lane / 8 % 2));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        mma_f16(out.keys[n + half], key_rows[0], key_rows[1], key_rows[2], key_rows[3],
                columns[2 * half], columns[2 * half + 1]);
        mma_f16(out.queries[n + half], query_rows[0], query_rows[1], query_rows[2], query_rows[3],
                columns[2 * half], columns[2 * half + 1]);
      }
    }
  }
}

// L to shared memory and the mixing matrix to the global one.
__device__ void weigh(const DeltaBlock& b, const Place& at, const Products& products, int repeat,
                      Shared& shared) {
  const int head = at.key_head * kRepeat + repeat;
  uint16* const mix = b.mix + (int64(at.chunk) * kValueHeads + head) * kChunk * kChunk;
  float(&lower)[kChunk][kChunk] = shared.lower[repeat % kHeadsTogether];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int row = products.row(at.lane, i), column = products.column(at.lane, n, i);
      const float decay = shared.decay[repeat][row];
      float weight[2], mixed[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float factor =
            row >= column + c ? expf(decay - shared.decay[repeat][column + c]) : 0.0f;
        weight[c] =
            row > column + c ? shared.beta[repeat][row] * factor * products.keys[n][i + c] : 0.0f;
        mixed[c] = factor * products.queries[n][i + c];
      }
      *reinterpret_cast<float2*>(&lower[row][column]) = make_float2(weight[0], weight[1]);
      const uint32 at_tile = tile_offset<kChunk>(row, column / 8) / 2 + column % 8;
      *reinterpret_cast<uint32*>(mix + at_tile) = float_f16x2(mixed[0], mixed[1]);
    }
  }
}

// Column `column` of (I + L)^-1 - I by forward substitution, to the global matrix.
__device__ void invert_column(const float (&lower)[kChunk][kChunk], int column, uint16* inverse) {
  float x[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    float even = i == column ? 1.0f : 0.0f, odd = 0.0f;
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&lower[i][j]);
      even = fmaf(-four.x, x[j], even);
      if (j + 1 < i) odd = fmaf(-four.y, x[j + 1], odd);
      if (j + 2 < i) even = fmaf(-four.z, x[j + 2], even);
      if (j + 3 < i) odd = fmaf(-four.w, x[j + 3], odd);
    }
    x[i] = even + odd;
    inverse[tile_offset<kChunk>(i, column / 8) / 2 + column % 8] =
        static_cast<uint16>(float_f16x2(i == column ? 0.0f : x[i], 0.0f));
  }
}

}  // namespace

// Grid (chunks, key heads), 256 threads. Bytes a block: 64 rows of (2 key_dim + r value_dim) BF16
// read, F16 tiles of as much and r times two 64 x 64 matrices written, r = kRepeat.
extern "C" __global__ void __launch_bounds__(kThreads, 2)
    delta_prepare(const __grid_constant__ DeltaBlock b) {
  __shared__ Shared shared;
  Place at;
  at.chunk = blockIdx.x;
  at.position = chunk_position(b, at.chunk);
  at.key_head = blockIdx.y;
  at.warp = threadIdx.x / 32;
  at.lane = threadIdx.x % 32;

  prepare_vectors(b, at, 0, shared);
  prepare_vectors(b, at, 1, shared);
  for (int repeat = at.warp; repeat < kRepeat; repeat += kWarps) {
    prepare_gates(b, at, repeat, shared);
  }
  __syncthreads();
  Products products;
  multiply(at, shared, products);
  __syncthreads();
  for (int first = 0; first < kRepeat; first += kHeadsTogether) {
    for (int repeat = first; repeat < min(first + kHeadsTogether, kRepeat); ++repeat) {
      weigh(b, at, products, repeat, shared);
    }
    __syncthreads();
    const int repeat = first + threadIdx.x / kChunk, column = threadIdx.x % kChunk;
    if (threadIdx.x < kHeadsTogether * kChunk && repeat < kRepeat) {
      const int64 place = int64(at.chunk) * kValueHeads + at.key_head * kRepeat + repeat;
      invert_column(shared.lower[repeat % kHeadsTogether], column,
                    b.inverse + place * kChunk * kChunk);
    }
    __syncthreads();
  }
  for (int repeat = 0; repeat < kRepeat; ++repeat) prepare_values(b, at, repeat, shared);
}

}  // namespace moray::cuda
