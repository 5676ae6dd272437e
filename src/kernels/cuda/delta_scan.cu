// Prefill of the gated delta net, second kernel: the chunks of a value head in order (formulas in
// delta_prefill_params.h).
//
// A warp owns sixteen columns of S and needs nothing from other warps; the warps of a block share
// tiles in shared memory, which arrive by asynchronous copies a chunk ahead. S^T, R^T and D^T stay
// in registers (delta_operand.cuh); S at each chunk's start and D go out as the operands that the
// next kernel multiplies, so that only what a chunk needs of the one before is done in order.
//
// Operands are F16. The matrices of keys are bounded by 1; S, R and D have no natural scale, so
// they stand in units of a power of two that a warp adapts chunk by chunk: largest magnitudes in
// F16 stay below 2^15 (S) and 2^9 (R, hence D below 2^15, since |inverse_ij| <= 1), and large
// enough that the spacing of subnormals, 2^-24, is below the roundoff of what matters.
#include "src/kernels/cuda/delta_operand.cuh"
#include "src/kernels/cuda/delta_prefill.cuh"
#include "src/kernels/cuda/device/half.cuh"

namespace moray::cuda {
namespace {

constexpr int kWarps = kScanColumns / 16;
constexpr int kThreads = kWarps * 32;
constexpr int kKeyBlocks = kKeyTile / 8;
constexpr int kUnitBits = 100;  // exponents of units stay within plus and minus this

struct alignas(128) Stage {
  uint16 keys[kChunk * kKeyTile];
  uint16 inverse[kChunk * kChunk];
  uint16 values[kChunk * kScanColumns];
  float gates[kGateRows * kChunk];
};
static_assert(2 * sizeof(Stage) == delta_scan_shared_bytes(kKeyDim, kValueDim));
static_assert(kValueTile % kScanColumns == 0);

struct Place {
  int head, key_head, slice, warp, lane;
  int column;  // of the thread's first accumulators; the others are 8 further

  __device__ bool holds(int eight) const { return column + 8 * eight < kValueDim; }
  __device__ int64 tile(int chunk) const { return int64(chunk) * kValueHeads + head; }
  __device__ int64 group(int chunk) const {
    return tile(chunk) * kColumnGroups + slice * kWarps + warp;
  }
};

__device__ void copy_stage(const DeltaBlock& b, const Place& at, int chunk, Stage& to) {
  const int64 key_tile = int64(chunk) * kKeyHeads + at.key_head, tile = at.tile(chunk);
  copy_straight<sizeof(to.keys), kThreads>(to.keys, b.keys + key_tile * kChunk * kKeyTile);
  copy_straight<sizeof(to.inverse), kThreads>(to.inverse, b.inverse + tile * kChunk * kChunk);
  copy_straight<sizeof(to.values), kThreads>(
      to.values, b.values + (tile * kValueTile + at.slice * kScanColumns) * kChunk);
  copy_straight<sizeof(to.gates), kThreads>(to.gates, b.gates + tile * kGateRows * kChunk);
  copies_end_group();
}

// Packs all of x; returns the F16 bits of the warp's largest magnitude.
template <int kSteps>
__device__ __forceinline__ uint32 pack_all(const Block (&x)[2 * kSteps], Operand (&out)[kSteps]) {
  uint32 largest = 0;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    pack_blocks(x[2 * k], x[2 * k + 1], out[k]);
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = max_abs_f16x2(largest, out[k][i]);
  }
  return __reduce_max_sync(0xffffffffu, max(largest & 0xffffu, largest >> 16));
}

// F16 bits of bounds on largest magnitudes; infinity counts as too large.
constexpr uint32 kTooLargeS = (15 + 15) << 10;  // 2^15
constexpr uint32 kTooLargeR = (15 + 9) << 10;   // 2^9
constexpr uint32 kSmall = (15 - 4) << 10;       // 2^-4
constexpr uint32 kRoomyS = (15 + 6) << 10;      // 2^6: may grow 2^8 times
constexpr int kShift = 8;                       // exponents move by this

// Brings S into range and packs it; `exponent` is that of its unit. Returns its largest magnitude.
__device__ __forceinline__ uint32 fit_state(Block (&s)[kKeyBlocks], int& exponent,
                                            Operand (&out)[kKeySteps]) {
  uint32 largest = pack_all<kKeySteps>(s, out);
  while (largest >= kTooLargeS && exponent < kUnitBits) {
    scale_blocks(s, power_of_two(-kShift));
    exponent += kShift;
    largest = pack_all<kKeySteps>(s, out);
  }
  while (largest < kSmall && largest > 0 && exponent > -kUnitBits) {
    scale_blocks(s, power_of_two(kShift));
    exponent -= kShift;
    largest = pack_all<kKeySteps>(s, out);
  }
  return largest;
}

// Brings R into range and packs it; returns by how much the exponent of the unit grew, which S must
// follow. R may be small beside S; only if S leaves room is it enlarged.
__device__ __forceinline__ int fit_right_sides(Block (&r)[kTokenBlocks], uint32 largest_s,
                                               int exponent, Operand (&out)[kTokenSteps]) {
  int grown = 0;
  uint32 largest = pack_all<kTokenSteps>(r, out);
  while (largest >= kTooLargeR && exponent + grown < kUnitBits) {
    scale_blocks(r, power_of_two(-kShift));
    grown += kShift;
    largest = pack_all<kTokenSteps>(r, out);
  }
  while (largest < kSmall && largest > 0 && exponent + grown > -kUnitBits &&
         (largest_s == 0 || (grown == 0 && largest_s < kRoomyS))) {
    scale_blocks(r, power_of_two(kShift));
    grown -= kShift;
    largest = pack_all<kTokenSteps>(r, out);
  }
  return grown;
}

// x <- beta V - (beta e^G) x, x being S^T K^T; all in units of S. `scale`: values' unit over it.
__device__ __forceinline__ void subtract_predicted(const Stage& stage, const Place& at, float scale,
                                                   Block (&x)[kTokenBlocks]) {
  const uint32 values = shared_address(stage.values);
  const int row = at.lane / 16 * 8 + at.lane % 8;
#pragma unroll
  for (int n = 0; n < kTokenBlocks; n += 2) {
    uint32 v[4];
    load_blocks_transposed(
        v, values + tile_offset<kScanColumns>(n * 8 + row, 2 * at.warp + at.lane / 8 % 2));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 factor = *reinterpret_cast<const float2*>(
          stage.gates + kStateFactorRow * kChunk + (n + half) * 8 + at.lane % 4 * 2);
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

template <int kSteps>
__device__ __forceinline__ void store_operands(unsigned short* base, int64 group, int lane,
                                               const Operand (&x)[kSteps]) {
  uint4* const to = reinterpret_cast<uint4*>(base) + group * kSteps * 32 + lane;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) to[k * 32] = make_uint4(x[k][0], x[k][1], x[k][2], x[k][3]);
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

// The last chunk's writes, as the state keeps them; pending ones stand there already.
__device__ void store_writes(const DeltaBlock& b, const Place& at, const Block (&d)[kTokenBlocks],
                             float unit) {
  const int first = chunk_position(b, b.chunks - 1);
#pragma unroll
  for (int n = 0; n < kTokenBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slot = n * 8 + at.lane % 4 * 2 + i % 2;
      if (!is_present(b, first + slot) || !at.holds(i / 2)) continue;
      const int row = at.head * kChunk + slot;
      b.call.state.writes[row * kValueDim + at.column + i / 2 * 8] = d[n][i] * unit;
    }
  }
}

}  // namespace

// Grid (value tile / kScanColumns, value heads), kWarps warps, delta_scan_shared_bytes() dynamic.
// Bytes a block and chunk: a key tile, a triangle and the values read, most of them from L2, since
// the blocks of a key head read the same; S and D of its columns written in F16. FLOPs: delta.h.
extern "C" __global__ void __launch_bounds__(kThreads)
    delta_scan(const __grid_constant__ DeltaBlock b) {
  extern __shared__ __align__(128) char dynamic_shared[];
  Stage* const stages = reinterpret_cast<Stage*>(dynamic_shared);
  Place at;
  at.slice = blockIdx.x;
  at.head = blockIdx.y;
  at.key_head = at.head / kRepeat;
  at.warp = threadIdx.x / 32;
  at.lane = threadIdx.x % 32;
  at.column = at.slice * kScanColumns + at.warp * 16 + at.lane / 4;

  copy_stage(b, at, 0, stages[0]);
  Block s[kKeyBlocks];
  load_state(b, at, s);
  int exponent = 0;
  for (int chunk = 0; chunk < b.chunks; ++chunk) {
    const Stage& stage = stages[chunk % 2];
    const bool is_last = chunk == b.chunks - 1;
    const float value_unit = b.value_units[at.tile(chunk)];
    Operand state[kKeySteps];
    const uint32 largest = fit_state(s, exponent, state);
    const float unit = power_of_two(exponent);
    store_operands(b.states, at.group(chunk), at.lane, state);
    copies_wait<0>();
    __syncthreads();  // this stage is here, and all warps have left the other
    if (!is_last) copy_stage(b, at, chunk + 1, stages[(chunk + 1) % 2]);

    Block x[kTokenBlocks];
    multiply_rows(state, shared_address(stage.keys), at.lane, x);
    subtract_predicted(stage, at, value_unit * power_of_two(-exponent), x);
    Operand operand[kTokenSteps];
    const int grown = fit_right_sides(x, largest, exponent, operand);
    exponent += grown;
    multiply_triangle(operand, shared_address(stage.inverse), at.lane, x);  // now D
#pragma unroll
    for (int k = 0; k < kTokenSteps; ++k) pack_blocks(x[2 * k], x[2 * k + 1], operand[k]);
    store_operands(b.writes, at.group(chunk), at.lane, operand);
    if (at.lane == 0) {
      b.units[2 * at.group(chunk)] = unit;
      b.units[2 * at.group(chunk) + 1] = power_of_two(exponent);
    }
    if (is_last) {
      store_state(b, at, s, unit);
      store_writes(b, at, x, power_of_two(exponent));
      break;
    }
    scale_tokens(stage.gates + kRemainingRow * kChunk, 1.0f, at.lane, x);
#pragma unroll
    for (int k = 0; k < kTokenSteps; ++k) pack_blocks(x[2 * k], x[2 * k + 1], operand[k]);
    scale_blocks(s, stage.gates[kDecayRow * kChunk + kChunk - 1] * power_of_two(-grown));
    add_products(operand, shared_address(stage.keys), at.lane, s);
  }
}

}  // namespace moray::cuda
