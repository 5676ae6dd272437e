// Prefill of the gated delta net, second kernel: the chunks of a value head in order (formulas in
// delta_prefill_params.h).
//
// A warp owns sixteen columns of S and needs nothing from other warps; the warps of a block share
// tiles in shared memory. Everything is held transposed, so that what a product leaves in the
// accumulators is the left operand of the next without leaving the registers:
//   S^T [16, key_dim] -> (S^T K^T, S^T Q^T) [16, 64] -> R^T -> D^T = R^T + R^T inverse^T -> O^T,
//   S^T
// Operands are F16. The matrices of keys are bounded by 1; S, R and D have no natural scale, so
// they stand in units of a power of two that a warp adapts chunk by chunk: largest magnitudes in
// F16 stay below 2^15 (S) and 2^9 (R, hence D below 2^15, since |inverse_ij| <= 1), and large
// enough that the spacing of subnormals, 2^-24, is below the roundoff of what matters.
//
// Tiles arrive by asynchronous copies: keys and values of the next chunk while this one computes,
// the other three in the second half of a chunk, after their last use.
#include "src/kernels/cuda/delta_prefill.cuh"
#include "src/kernels/cuda/device/half.cuh"
#include "src/kernels/cuda/device/mma.cuh"
#include "src/kernels/cuda/device/tile.cuh"

namespace moray::cuda {
namespace {

constexpr int kWarps = delta_scan_warps(kValueDim);
constexpr int kThreads = kWarps * 32;
constexpr int kColumns = kWarps * 16;     // of a block
constexpr int kKeyBlocks = kKeyTile / 8;  // of 8 columns in S^T
constexpr int kKeySteps = kKeyTile / 16;  // of 16 in a product over key dimensions
constexpr int kTokenBlocks = kChunk / 8;  // of 8 columns in R^T, D^T, O^T
constexpr int kTokenSteps = kChunk / 16;
constexpr int kUnitBits = 100;  // exponents of units stay within plus and minus this

struct Early {  // needed from a chunk's start
  uint16 keys[kChunk * kKeyTile];
  uint16 values[kChunk * kColumns];
  float gates[kGateRows * kChunk];
};
struct Late {
  uint16 queries[kChunk * kKeyTile];
  uint16 inverse[kChunk * kChunk];
  uint16 mix[kChunk * kChunk];
};
struct alignas(128) Shared {
  Early early[2];
  Late late;
};
static_assert(sizeof(Shared) == delta_scan_shared_bytes(kKeyDim, kValueDim));
static_assert(kValueTile % kColumns == 0);

using Block = float[4];  // sixteen columns of S by 8 of something: accumulators of mma.cuh
using Operand = uint32[4];

struct Place {
  int head, key_head, warp, lane;
  int first_column;  // of the block
  int column;        // of the thread's first accumulators; the others are 8 further

  __device__ bool holds(int eight) const { return column + 8 * eight < kValueDim; }
};

// Rows of a global tile to shared memory; `pieces` of 16 bytes a row are taken.
template <int kWidth>
__device__ void copy_tile(uint16* to, const uint16* from, int row_stride) {
  constexpr int kPieces = kWidth / 8;
  const uint32 base = shared_address(to);
#pragma unroll
  for (int n = threadIdx.x; n < kChunk * kPieces; n += kThreads) {
    const int row = n / kPieces, piece = n % kPieces;
    copy_async(base + tile_offset<kWidth>(row, piece), from + row * row_stride + piece * 8, true);
  }
}

__device__ void copy_early(const DeltaBlock& b, const Place& at, int chunk, Early& to) {
  const int64 key_tile = int64(chunk) * kKeyHeads + at.key_head;
  const int64 tile = int64(chunk) * kValueHeads + at.head;
  copy_tile<kKeyTile>(to.keys, b.keys + key_tile * kChunk * kKeyTile, kKeyTile);
  copy_tile<kColumns>(to.values, b.values + tile * kChunk * kValueTile + at.first_column,
                      kValueTile);
  const float* const gates = b.gates + tile * kGateRows * kChunk;
  for (int n = threadIdx.x * 4; n < kGateRows * kChunk; n += kThreads * 4) {
    copy_async(shared_address(to.gates + n), gates + n, true);
  }
  copies_end_group();
}
__device__ void copy_late(const DeltaBlock& b, const Place& at, int chunk, Late& to) {
  const int64 key_tile = int64(chunk) * kKeyHeads + at.key_head;
  const int64 tile = int64(chunk) * kValueHeads + at.head;
  copy_tile<kKeyTile>(to.queries, b.queries + key_tile * kChunk * kKeyTile, kKeyTile);
  copy_tile<kChunk>(to.inverse, b.inverse + tile * kChunk * kChunk, kChunk);
  copy_tile<kChunk>(to.mix, b.mix + tile * kChunk * kChunk, kChunk);
  copies_end_group();
}

// Accumulators of two neighbouring blocks as the left operand of a product over their columns.
__device__ __forceinline__ void pack(const Block& first, const Block& second, Operand& out) {
  out[0] = float_f16x2(first[0], first[1]);
  out[1] = float_f16x2(first[2], first[3]);
  out[2] = float_f16x2(second[0], second[1]);
  out[3] = float_f16x2(second[2], second[3]);
}

// Packs all of x; returns the F16 bits of the warp's largest magnitude.
template <int kSteps>
__device__ __forceinline__ uint32 pack_all(const Block (&x)[2 * kSteps], Operand (&out)[kSteps]) {
  uint32 largest = 0;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    pack(x[2 * k], x[2 * k + 1], out[k]);
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = max_abs_f16x2(largest, out[k][i]);
  }
  return __reduce_max_sync(0xffffffffu, max(largest & 0xffffu, largest >> 16));
}

template <int kBlocks>
__device__ __forceinline__ void scale_all(Block (&x)[kBlocks], float factor) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n][i] *= factor;
  }
}

// F16 bits of bounds on largest magnitudes; infinity counts as too large.
constexpr uint32 kTooLargeS = (15 + 15) << 10;  // 2^15
constexpr uint32 kTooLargeR = (15 + 9) << 10;   // 2^9
constexpr uint32 kSmall = (15 - 4) << 10;       // 2^-4
constexpr uint32 kRoomyS = (15 + 6) << 10;      // 2^6: may grow 2^8 times
constexpr int kShift = 8;                       // exponents move by this

// Brings S into range: out is S packed, `exponent` that of its unit.
__device__ __forceinline__ uint32 fit_state(Block (&s)[kKeyBlocks], int& exponent,
                                            Operand (&out)[kKeySteps]) {
  uint32 largest = pack_all<kKeySteps>(s, out);
  while (largest >= kTooLargeS && exponent < kUnitBits) {
    scale_all(s, power_of_two(-kShift));
    exponent += kShift;
    largest = pack_all<kKeySteps>(s, out);
  }
  while (largest < kSmall && largest > 0 && exponent > -kUnitBits) {
    scale_all(s, power_of_two(kShift));
    exponent -= kShift;
    largest = pack_all<kKeySteps>(s, out);
  }
  return largest;
}

// Brings R into range; returns by how much the exponent of the unit grew, which S and O must
// follow. R may be small beside S; only if S leaves room is it enlarged.
__device__ __forceinline__ int fit_right_sides(Block (&r)[kTokenBlocks], uint32 largest_s,
                                               int exponent, Operand (&out)[kTokenSteps]) {
  int grown = 0;
  uint32 largest = pack_all<kTokenSteps>(r, out);
  while (largest >= kTooLargeR && exponent + grown < kUnitBits) {
    scale_all(r, power_of_two(-kShift));
    grown += kShift;
    largest = pack_all<kTokenSteps>(r, out);
  }
  while (largest < kSmall && largest > 0 && exponent + grown > -kUnitBits &&
         (largest_s == 0 || (grown == 0 && largest_s < kRoomyS))) {
    scale_all(r, power_of_two(kShift));
    grown -= kShift;
    largest = pack_all<kTokenSteps>(r, out);
  }
  return grown;
}

// out = S^T X^T for a tile X [64, key tile].
__device__ __forceinline__ void multiply_state(const Operand (&s)[kKeySteps], uint32 tile, int lane,
                                               Block (&out)[kTokenBlocks]) {
#pragma unroll
  for (int n = 0; n < kTokenBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n][i] = 0.0f;
  }
  const int row = lane / 16 * 8 + lane % 8;
#pragma unroll
  for (int k = 0; k < kKeySteps; ++k) {
#pragma unroll
    for (int n = 0; n < kTokenBlocks; n += 2) {
      uint32 x[4];
      load_blocks(x, tile + tile_offset<kKeyTile>(n * 8 + row, 2 * k + lane / 8 % 2));
      mma_f16(out[n], s[k][0], s[k][1], s[k][2], s[k][3], x[0], x[1]);
      mma_f16(out[n + 1], s[k][0], s[k][1], s[k][2], s[k][3], x[2], x[3]);
    }
  }
}

// out += X^T M^T for a lower triangular tile M [64, 64].
__device__ __forceinline__ void multiply_triangle(const Operand (&x)[kTokenSteps], uint32 tile,
                                                  int lane, Block (&out)[kTokenBlocks]) {
  const int row = lane / 16 * 8 + lane % 8;
#pragma unroll
  for (int k = 0; k < kTokenSteps; ++k) {
#pragma unroll
    for (int n = 2 * k; n < kTokenBlocks; n += 2) {
      uint32 m[4];
      load_blocks(m, tile + tile_offset<kChunk>(n * 8 + row, 2 * k + lane / 8 % 2));
      mma_f16(out[n], x[k][0], x[k][1], x[k][2], x[k][3], m[0], m[1]);
      mma_f16(out[n + 1], x[k][0], x[k][1], x[k][2], x[k][3], m[2], m[3]);
    }
  }
}

// S^T += D^T K for a tile K [64, key tile].
__device__ __forceinline__ void add_keys(const Operand (&d)[kTokenSteps], uint32 tile, int lane,
                                         Block (&s)[kKeyBlocks]) {
  const int row = lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
  for (int k = 0; k < kTokenSteps; ++k) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; n += 2) {
      uint32 x[4];
      load_blocks_transposed(x, tile + tile_offset<kKeyTile>(k * 16 + row, n + lane / 16));
      mma_f16(s[n], d[k][0], d[k][1], d[k][2], d[k][3], x[0], x[1]);
      mma_f16(s[n + 1], d[k][0], d[k][1], d[k][2], d[k][3], x[2], x[3]);
    }
  }
}

// x <- beta V - (beta e^G) x, x being S^T K^T; all in units of S. `scale`: values' unit over it.
__device__ __forceinline__ void subtract_predicted(const Early& early, const Place& at, float scale,
                                                   Block (&x)[kTokenBlocks]) {
  const uint32 values = shared_address(early.values);
  const int row = at.lane / 16 * 8 + at.lane % 8;
#pragma unroll
  for (int n = 0; n < kTokenBlocks; n += 2) {
    uint32 v[4];
    load_blocks_transposed(
        v, values + tile_offset<kColumns>(n * 8 + row, 2 * at.warp + at.lane / 8 % 2));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 factor = *reinterpret_cast<const float2*>(
          early.gates + kStateFactorRow * kChunk + (n + half) * 8 + at.lane % 4 * 2);
      Block& out = x[n + half];
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        const uint32 pair = v[2 * half + eight];
        out[2 * eight] = fmaf(-factor.x, out[2 * eight], scale * f16_float(uint16(pair)));
        out[2 * eight + 1] =
            fmaf(-factor.y, out[2 * eight + 1], scale * f16_float(uint16(pair >> 16)));
      }
    }
  }
}

// Scales each token's column by a row of the gates and a common factor.
__device__ __forceinline__ void scale_tokens(const Early& early, int gate_row, float common,
                                             int lane, Block (&x)[kTokenBlocks]) {
#pragma unroll
  for (int n = 0; n < kTokenBlocks; ++n) {
    const float2 factor =
        *reinterpret_cast<const float2*>(early.gates + gate_row * kChunk + n * 8 + lane % 4 * 2);
    x[n][0] *= factor.x * common;
    x[n][1] *= factor.y * common;
    x[n][2] *= factor.x * common;
    x[n][3] *= factor.y * common;
  }
}

// Columns of a token block element by element: visit(token in the chunk, whether 8 columns further,
// value).
template <class Visit>
__device__ __forceinline__ void visit_tokens(const Block (&x)[kTokenBlocks], int lane,
                                             Visit&& visit) {
#pragma unroll
  for (int n = 0; n < kTokenBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) visit(n * 8 + lane % 4 * 2 + i % 2, i / 2, x[n][i]);
  }
}

__device__ void load_state(const DeltaBlock& b, const Place& at, Block (&s)[kKeyBlocks]) {
  const float* const from = b.call.state.s + at.head * kKeyDim * kValueDim + at.column;
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = n * 8 + at.lane % 4 * 2 + i % 2;
      const bool exists = b.call.position > 0 && row < kKeyDim && at.holds(i / 2);
      s[n][i] = exists ? from[row * kValueDim + i / 2 * 8] : 0.0f;
    }
  }
}

__device__ void store_state(const DeltaBlock& b, const Place& at, const Block (&s)[kKeyBlocks],
                            float unit) {
  float* const to = b.call.state.s + at.head * kKeyDim * kValueDim + at.column;
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = n * 8 + at.lane % 4 * 2 + i % 2;
      if (row < kKeyDim && at.holds(i / 2)) to[row * kValueDim + i / 2 * 8] = s[n][i] * unit;
    }
  }
}

__device__ void store_outputs(const DeltaBlock& b, const Place& at, int chunk,
                              const Block (&o)[kTokenBlocks], float unit) {
  const int first = chunk_position(b, chunk);
  visit_tokens(o, at.lane, [&](int slot, int eight, float value) {
    if (!is_present(b, first + slot) || !at.holds(eight)) return;
    const int64 row = int64(first + slot - b.call.position) * kValueHeads + at.head;
    b.mixed[row * kValueDim + at.column + 8 * eight] = value * unit;
  });
}

__device__ void store_writes(const DeltaBlock& b, const Place& at, int chunk,
                             const Block (&d)[kTokenBlocks], float unit) {
  const int first = chunk_position(b, chunk);
  visit_tokens(d, at.lane, [&](int slot, int eight, float value) {
    if (!is_present(b, first + slot) || !at.holds(eight)) return;
    b.call.state.writes[(at.head * kChunk + slot) * kValueDim + at.column + 8 * eight] =
        value * unit;
  });
}

}  // namespace

// Grid (value tile / kColumns, value heads), kWarps warps, delta_scan_shared_bytes() dynamic. Bytes
// a block and chunk: two key tiles, two triangles and the values, most of them from L2, since the
// blocks of a key head read the same; FLOPs: delta.h.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    delta_scan(const __grid_constant__ DeltaBlock b) {
  extern __shared__ __align__(128) char dynamic_shared[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
  Place at;
  at.head = blockIdx.y;
  at.key_head = at.head / kRepeat;
  at.warp = threadIdx.x / 32;
  at.lane = threadIdx.x % 32;
  at.first_column = blockIdx.x * kColumns;
  at.column = at.first_column + at.warp * 16 + at.lane / 4;

  copy_early(b, at, 0, shared.early[0]);
  copy_late(b, at, 0, shared.late);
  Block s[kKeyBlocks];
  load_state(b, at, s);
  int exponent = 0;
  for (int chunk = 0; chunk < b.chunks; ++chunk) {
    const Early& early = shared.early[chunk % 2];
    const bool is_last = chunk == b.chunks - 1;
    Operand packed[kKeySteps];
    const uint32 largest = fit_state(s, exponent, packed);
    copies_wait<1>();
    __syncthreads();  // early is here, and the other one is free
    if (!is_last) copy_early(b, at, chunk + 1, shared.early[(chunk + 1) % 2]);

    Block x[kTokenBlocks], o[kTokenBlocks];
    multiply_state(packed, shared_address(early.keys), at.lane, x);
    const int64 tile = int64(chunk) * kValueHeads + at.head;
    subtract_predicted(early, at, b.value_units[tile] * power_of_two(-exponent), x);
    if (is_last) {
      copies_wait<0>();
    } else {
      copies_wait<1>();
    }
    __syncthreads();  // late is here
    multiply_state(packed, shared_address(shared.late.queries), at.lane, o);
    Operand operand[kTokenSteps];
    const int grown = fit_right_sides(x, largest, exponent, operand);
    if (is_last) store_state(b, at, s, power_of_two(exponent));
    exponent += grown;

    multiply_triangle(operand, shared_address(shared.late.inverse), at.lane, x);  // D
    if (is_last) store_writes(b, at, chunk, x, power_of_two(exponent));
    pack_all<kTokenSteps>(x, operand);
    scale_tokens(early, kDecayRow, power_of_two(-grown), at.lane, o);
    multiply_triangle(operand, shared_address(shared.late.mix), at.lane, o);
    store_outputs(b, at, chunk, o, power_of_two(exponent));
    if (is_last) break;

    __syncthreads();  // late is free
    copy_late(b, at, chunk + 1, shared.late);
    scale_tokens(early, kRemainingRow, 1.0f, at.lane, x);
    pack_all<kTokenSteps>(x, operand);
    scale_all(s, early.gates[kDecayRow * kChunk + kChunk - 1] * power_of_two(-grown));
    add_keys(operand, shared_address(early.keys), at.lane, s);
  }
}

}  // namespace moray::cuda
