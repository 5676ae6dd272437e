// Prefill of the gated delta net, last kernel: the gated norm of the outputs, and the part of the
// state that is copied rather than computed (writes and S are the scan's).
#include "src/kernels/cuda/delta_math.cuh"
#include "src/kernels/cuda/delta_prefill.cuh"
#include "src/kernels/cuda/device/number.cuh"

namespace moray::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;

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

// round( o * rsqrt(mean o^2 + eps) * norm * silu(z) ) of one token and value head, a warp.
__device__ void gate_output(const DeltaBlock& b, int64 row, int lane) {
  const int element = 4 * lane;
  const bool exists = element < kValueDim;
  const int64 place = row * kValueDim + element;
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f), norm = o;
  uint2 z = make_uint2(0, 0);
  if (exists) {
    o = *reinterpret_cast<const float4*>(b.mixed + place);
    z = *reinterpret_cast<const uint2*>(b.call.z + place);
    norm = *reinterpret_cast<const float4*>(b.call.weights.norm + element);
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

// A warp a token and value head; any grid. Bytes a value: 4 of O and 2 of z read, 2 written.
extern "C" __global__ void __launch_bounds__(kThreads)
    delta_finish(const __grid_constant__ DeltaBlock b) {
  const int threads = gridDim.x * kThreads, thread = blockIdx.x * kThreads + threadIdx.x;
  keep_state(b, thread, threads);
  const int64 rows = int64(b.call.tokens) * kValueHeads;
  for (int64 row = thread / 32; row < rows; row += threads / 32) {
    gate_output(b, row, threadIdx.x % 32);
  }
}

}  // namespace moray::cuda
