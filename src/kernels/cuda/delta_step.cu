// One decode step of the gated delta net, one kernel: convolution, norms, gates, delta rule, gated
// norm (formula and lazily folded state: src/kernels/ops.h).
//
// A block owns kColumns columns of one value head: S there, the writes there and, like every block
// of its key head, all keys. State that an earlier step left is loaded to registers before
// wait_for_previous(), S once for all tokens; it is read only, but for the fold at a chunk's
// border. Work on a token, with the barriers between:
//   convolve   a warp a vector (q, k, 32 columns of v), norm included
//   multiply   S^T k, S^T q: a row group a warp, a column a lane; k.k_j, q.k_j: a few j a warp
//   combine    a few columns a warp: sums over j, d, o; the step's tokens follow each other here
//   finish     sum of o^2 across the cluster, gate, store
//
// Layout: delta_step_place.cuh; inputs: delta_step_input.cuh; multiply and combine:
// delta_step_rule.cuh.
#include "src/kernels/cuda/delta_step_input.cuh"
#include "src/kernels/cuda/delta_step_place.cuh"
#include "src/kernels/cuda/delta_step_rule.cuh"
#include "src/kernels/cuda/device/cluster.cuh"
#include "src/kernels/cuda/device/grid.cuh"

namespace moray::cuda {
namespace {

__device__ void load_state(const DeltaStepParams& p, const Place& at, const Window& w, Held& held,
                           Shared& shared) {
  const float* const s = p.state.s + at.head * kKeyDim * kValueDim + at.value_column() + at.column;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = at.first_row + r;
    const bool exists = w.position > 0 && row < kKeyDim && at.holds_column();
    held.s[r] = exists ? s[row * kValueDim] : 0.0f;
  }
  const float* const keys = p.state.keys + at.key_head * kChunk * kKeyDim;
#pragma unroll
  for (int n = 0; n < kSlots; ++n) {
    const int slot = at.warp * kSlots + n;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int element = at.lane + 32 * i;
      const bool exists = slot < w.pending && element < kKeyDim;
      held.keys[n][i] = exists ? keys[slot * kKeyDim + element] : 0.0f;
    }
  }
  const float* const writes =
      p.state.writes + at.head * kChunk * kValueDim + at.value_column() + at.own_column;
#pragma unroll
  for (int i = 0; i < kWrites; ++i) {
    const int slot = at.own_slot + kRowGroups * i;
    const bool exists = slot < w.pending && at.owns_column();
    held.writes[i] = exists ? writes[slot * kValueDim] : 0.0f;
  }
  for (int slot = threadIdx.x; slot < w.pending; slot += kThreads) {
    shared.decay[slot] = p.state.log_decay[at.head * kChunk + slot];
  }
}

__device__ void store_s(const DeltaStepParams& p, const Place& at, const Held& held) {
  float* const s = p.state.s + at.head * kKeyDim * kValueDim + at.value_column() + at.column;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = at.first_row + r;
    if (row < kKeyDim && at.holds_column()) s[row * kValueDim] = held.s[r];
  }
}

__device__ void store_keys(const DeltaStepParams& p, const Place& at, const Window& w,
                           const Shared& shared) {
  const int first = max(0, w.last_chunk - w.position);
  for (int n = threadIdx.x; n < (w.count - first) * kKeyDim; n += kThreads) {
    const int token = first + n / kKeyDim, element = n % kKeyDim;
    const int slot = w.position + token - w.last_chunk;
    p.state.keys[(at.key_head * kChunk + slot) * kKeyDim + element] =
        shared.vectors[token][1][element];
  }
}

// Keys of a chunk opened in this step go where blocks of the key head may still read old ones, so
// the block that comes here last writes them; otherwise the keeper may.
__device__ void keep_keys(const DeltaStepParams& p, const Place& at, const Window& w,
                          Shared& shared) {
  if (w.position == 0 || !w.opened()) {
    if (at.keeps_key_head()) store_keys(p, at, w, shared);
    return;
  }
  if (threadIdx.x == 0) {
    __threadfence();
    const int before = atomicAdd(p.arrivals + at.key_head, 1);
    shared.last = before == kRepeat * kSlices - 1;
    if (shared.last) p.arrivals[at.key_head] = 0;
  }
  __syncthreads();
  if (shared.last) store_keys(p, at, w, shared);
}

// Every block of the cluster gets every block's sum of squares of each token.
__device__ void share_squares(const Place& at, const Window& w, Shared& shared) {
  if (threadIdx.x < w.count) {
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kWarps; ++n) sum += shared.squares[threadIdx.x][n];
    exchange_send(shared.totals, at.slice, threadIdx.x, sum);
  }
  exchange_wait(shared.totals);
}

// The step's outputs in the block's columns, numbered token by token.

__device__ int64 output_place(const Place& at, int n) {
  return int64(n / kColumns * kValueHeads + at.head) * kValueDim + at.value_column() + n % kColumns;
}

__device__ float load_z(const DeltaStepParams& p, const Place& at, const Window& w, int n) {
  return n < w.count * kColumns ? p.z[output_place(at, n)] : 0.0f;
}

__device__ void finish(const DeltaStepParams& p, const Place& at, int n, float z,
                       const Shared& shared) {
  const int token = n / kColumns;
  float squares = 0.0f;
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) squares += shared.totals.values[slice][token];
  const float factor = rsqrtf(squares / kValueDim + kNormEps);
  const int column = n % kColumns;
  const float value = shared.values[token][column] * factor * shared.norm[column] * silu(z);
  p.out[output_place(at, n)] = float_bf16(value);
}

}  // namespace

// Grid (slices, value heads), clusters along x; block delta_step_warps() warps. The 35B shape has
// 128 blocks of 256 threads, about one a multiprocessor of an H200; bytes and FLOPs: delta.h.
extern "C" __global__ void __launch_bounds__(kThreads, kThreads <= 256 ? 2 : 1)
    delta_step(const __grid_constant__ DeltaStepParams p) {
  __shared__ Shared shared;
  const Place at = find_place();
  const Window w = find_window(p);
  if (w.count <= 0) return;
  exchange_open(shared.totals, w.count);
  Held held;
  load_state(p, at, w, held, shared);
  const Vector vector = find_vector(at, at.warp % kParts);
  if (at.warp < kParts) prefetch_taps(p, at, w, vector);
  const float a_log = p.weights.a_log[at.head], dt_bias = p.weights.dt_bias[at.head];
  if (threadIdx.x < kColumns) {
    shared.norm[threadIdx.x] = p.weights.norm[at.value_column() + threadIdx.x];
  }
  let_next_start();
  __syncthreads();  // shared.decay
  wait_for_previous();

  const float first_z = load_z(p, at, w, threadIdx.x);
  if (at.warp == kWarps - 1) compute_gates(p, at, w, a_log, dt_bias, shared);
  constexpr int kBusy = kWarps / kParts * kParts;  // warps that share the vectors evenly
  for (int token = at.warp / kParts; at.warp < kBusy && token < w.count; token += kBusy / kParts) {
    convolve_vector(p, at, w, vector, token, shared);
  }
  __syncthreads();

  for (Segment segment{0, 0, 0}; segment.first < w.count; segment.first += segment.count) {
    const int position = w.position + segment.first;
    segment.place = position % kChunk;
    segment.count = min(kChunk - segment.place, w.count - segment.first);
    if (segment.place == 0) {
      if (position > 0) fold(p, at, held, shared);
      store_s(p, at, held);
      __syncthreads();  // the old decays have been read
      add_decays(segment, threadIdx.x, shared);
      __syncthreads();
    }
    run_segment(p, at, w, segment, held, shared);
  }

  exchange_ready(shared.totals);
  share_squares(at, w, shared);
  keep_keys(p, at, w, shared);
  // All blocks of the head have read the old decays by now.
  for (int t = threadIdx.x; at.slice == 0 && t < w.count; t += kThreads) {
    const int position = w.position + t;
    if (position >= w.last_chunk) {
      p.state.log_decay[at.head * kChunk + position % kChunk] = shared.token_decay[t];
    }
  }
  for (int n = threadIdx.x; n < w.count * kColumns; n += kThreads) {
    const float z = n < kThreads ? first_z : load_z(p, at, w, n);
    finish(p, at, n, z, shared);
  }
}

}  // namespace moray::cuda
