// Prefill of the gated delta net, last kernel: outputs of all chunks at once, their gated norm, and
// the part of the state that is copied rather than computed (writes and S are the scan's).
//
// A block is a chunk of one value head, a warp sixteen columns: O^T = e^G S^T Q^T + D^T mix^T on
// tensor cores, then a token a warp to norm, gate and store.
#include "src/kernels/cuda/delta_math.cuh"
#include "src/kernels/cuda/delta_operand.cuh"
#include "src/kernels/cuda/delta_prefill.cuh"

namespace moray::cuda {
namespace {

constexpr int kWarps = kColumnGroups;
constexpr int kThreads = kWarps * 32;
constexpr int kOutputRow = kValueTile + 4;  // floats; rows begin on different banks

struct Tiles {
  alignas(16) uint16 queries[kChunk * kKeyTile];
  alignas(16) uint16 mix[kChunk * kChunk];
};
struct Shared {
  union {
    Tiles tiles;
    alignas(16) float output[kChunk][kOutputRow];
  };
  alignas(16) float decay[kChunk];  // e^G
};
static_assert(sizeof(Shared) <= 48 * 1024);

// Inputs of the last chunk and of the taps before it; rows that stay where they are are not
// touched. A thread has a channel, so it reads the rows it moves before it writes them.
__device__ void keep_inputs(const DeltaBlock& b, int channel) {
  float* const tail = b.call.state.conv_tail + channel;
  const int chunk = chunk_position(b, b.chunks - 1);
  const int end = b.call.position + b.call.tokens;
  const bool opened = chunk >= b.call.position;
  float past[kPast > 0 ? kPast : 1];
#pragma unroll
  for (int j = 0; j < kPast; ++j) {
    const int position = b.call.position - kPast + j;
    past[j] = position < 0 ? 0.0f : tail[(position - b.first_chunk + kPast) * kChannels];
  }
  if (opened) {
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      const int row = b.call.position - chunk + j;
      if (row >= 0) tail[row * kChannels] = past[j];
    }
  }
  // Eight loads in flight: the stores between might alias for all the compiler knows.
  for (int first = max(b.call.position, chunk - kPast); first < end; first += 8) {
    uint16 input[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int position = min(first + i, end - 1);
      input[i] = b.call.qkv[int64(position - b.call.position) * kChannels + channel];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (first + i < end) tail[(first + i - chunk + kPast) * kChannels] = bf16_float(input[i]);
    }
  }
}

__device__ void keep_state(const DeltaBlock& b, int thread, int threads) {
  for (int channel = thread; channel < kChannels; channel += threads) keep_inputs(b, channel);
  const int present = b.call.position + b.call.tokens - chunk_position(b, b.chunks - 1);
  for (int n = thread; n < kKeyHeads * kChunk * kKeyDim; n += threads) {
    if (n / kKeyDim % kChunk < present) b.call.state.keys[n] = b.last_keys[n];
  }
  for (int n = thread; n < kValueHeads * kChunk; n += threads) {
    const int head = n / kChunk, slot = n % kChunk;
    const int64 row = (int64(b.chunks - 1) * kValueHeads + head) * kGateRows + kLogDecayRow;
    if (slot < present) b.call.state.log_decay[n] = b.gates[row * kChunk + slot];
  }
}

__device__ void copy_tiles(const DeltaBlock& b, int chunk, int head, Shared& shared) {
  const int64 key_tile = int64(chunk) * kKeyHeads + head / kRepeat;
  const int64 tile = int64(chunk) * kValueHeads + head;
  copy_straight<sizeof(Tiles::queries), kThreads>(shared.tiles.queries,
                                                  b.queries + key_tile * kChunk * kKeyTile);
  copy_straight<sizeof(Tiles::mix), kThreads>(shared.tiles.mix, b.mix + tile * kChunk * kChunk);
  copy_straight<sizeof(shared.decay), kThreads>(shared.decay,
                                                b.gates + (tile * kGateRows + kDecayRow) * kChunk);
  copies_end_group();
}

template <int kSteps>
__device__ __forceinline__ void load_operands(const unsigned short* base, int64 group, int lane,
                                              Operand (&x)[kSteps]) {
  const uint4* const from = reinterpret_cast<const uint4*>(base) + group * kSteps * 32 + lane;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const uint4 four = from[k * 32];
    x[k][0] = four.x;
    x[k][1] = four.y;
    x[k][2] = four.z;
    x[k][3] = four.w;
  }
}

// O^T of the warp's columns in units of the writes, and over rows of tokens to shared memory.
__device__ void compute_outputs(const DeltaBlock& b, int64 group, int warp, int lane,
                                Shared& shared) {
  Operand state[kKeySteps], writes[kTokenSteps];
  load_operands(b.states, group, lane, state);
  load_operands(b.writes, group, lane, writes);
  const float state_unit = b.units[2 * group], unit = b.units[2 * group + 1];
  copies_wait<0>();
  __syncthreads();
  Block o[kTokenBlocks];
  multiply_rows(state, shared_address(shared.tiles.queries), lane, o);
  scale_tokens(shared.decay, state_unit / unit, lane, o);
  multiply_triangle(writes, shared_address(shared.tiles.mix), lane, o);
  scale_blocks(o, unit);
  __syncthreads();  // the tiles have been read
#pragma unroll
  for (int n = 0; n < kTokenBlocks; ++n) {
    const int token = n * 8 + lane % 4 * 2, column = warp * 16 + lane / 4;
    shared.output[token][column] = o[n][0];
    shared.output[token + 1][column] = o[n][1];
    shared.output[token][column + 8] = o[n][2];
    shared.output[token + 1][column + 8] = o[n][3];
  }
  __syncthreads();
}

// round( o * rsqrt(mean o^2 + eps) * norm * silu(z) ) of one token, a warp.
__device__ void gate_output(const DeltaBlock& b, int64 row, int lane, const float* output) {
  const int element = 4 * lane;
  const bool exists = element < kValueDim;
  const int64 place = row * kValueDim + element;
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f), norm = o;
  uint2 z = make_uint2(0, 0);
  if (exists) {
    z = *reinterpret_cast<const uint2*>(b.call.z + place);
    norm = *reinterpret_cast<const float4*>(b.call.weights.norm + element);
    o = *reinterpret_cast<const float4*>(output + element);
  }
  const float squares = warp_sum(fmaf(o.x, o.x, fmaf(o.y, o.y, fmaf(o.z, o.z, o.w * o.w))));
  const float factor = rsqrtf(squares / kValueDim + kNormEps);
  if (!exists) return;
  const uint32 low = float_bf16x2(o.x * factor * norm.x * silu(bf16_low(z.x)),
                                  o.y * factor * norm.y * silu(bf16_high(z.x)));
  const uint32 high = float_bf16x2(o.z * factor * norm.z * silu(bf16_low(z.y)),
                                   o.w * factor * norm.w * silu(bf16_high(z.y)));
  *reinterpret_cast<uint2*>(b.call.out + place) = make_uint2(low, high);
}

}  // namespace

// Grid (chunks + 1, value heads), a warp for every sixteen columns; the last blocks along x keep
// the state. Bytes a block: a key tile, a triangle and S and D in F16 read, 2 of z a value read and
// 2 written.
extern "C" __global__ void __launch_bounds__(kThreads, 512 / kThreads)
    delta_finish(const __grid_constant__ DeltaBlock b) {
  __shared__ Shared shared;
  const int chunk = blockIdx.x, head = blockIdx.y;
  if (chunk == b.chunks) {
    keep_state(b, head * kThreads + threadIdx.x, kValueHeads * kThreads);
    return;
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  copy_tiles(b, chunk, head, shared);
  compute_outputs(b, (int64(chunk) * kValueHeads + head) * kColumnGroups + warp, warp, lane,
                  shared);
  const int first = chunk_position(b, chunk);
#pragma unroll 4
  for (int token = warp; token < kChunk; token += kWarps) {
    if (!is_present(b, first + token)) continue;
    const int64 row = int64(first + token - b.call.position) * kValueHeads + head;
    gate_output(b, row, lane, shared.output[token]);
  }
}

}  // namespace moray::cuda
