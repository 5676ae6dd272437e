// One decode step of the gated delta net, one kernel: convolution, norms, gates, delta rule, gated
// norm (formula and lazily folded state: src/kernels/ops.h).
//
// A block owns kColumns columns of one value head: S there, the writes there and, like every block
// of its key head, all keys. State that an earlier step left is loaded to registers before
// wait_for_previous(), S once for all tokens; it is read only, but for the fold at a chunk's
// border. Work on a token, with the barriers between:
//   convolve   a warp a vector (q, k, 32 columns of v), norm included
//   multiply   S^T k and S^T q, a row group a warp, a column a lane; k.k_j and q.k_j, a warp a few
//              of the j
//   combine    a warp four columns: sums over j, d, o; tokens of the step follow each other here
//   finish     sum of o^2 across the cluster, gate, store
//
// Invariant: the order of every sum is a function of a token's place in its chunk only.
#include "src/kernels/cuda/delta_step_input.cuh"
#include "src/kernels/cuda/delta_step_place.cuh"
#include "src/kernels/cuda/device/cluster.cuh"
#include "src/kernels/cuda/device/grid.cuh"

namespace moray::cuda {
namespace {

// A run of the step's tokens in one chunk.
struct Segment {
  int first, count;  // tokens
  int place;         // of the first in its chunk
};

// Enters the segment's tokens in the chunk's decays.
__device__ void add_decays(const Segment& segment, int thread, Shared& shared) {
  if (thread < segment.count) {
    shared.decay[segment.place + thread] = shared.token_decay[segment.first + thread];
  }
}

// beta and G of the step's tokens, a lane a token. One warp. The chunk's decays get them as well,
// unless the old ones are still needed to fold it.
__device__ void compute_gates(const DeltaStepParams& p, const Place& at, const Window& w,
                              float a_log, float dt_bias, Shared& shared) {
  float g = 0.0f;
  if (at.lane < w.count) {
    g = log_decay_of(p.a[at.lane * kValueHeads + at.head], a_log, dt_bias);
    shared.beta[at.lane] = sigmoid(p.b[at.lane * kValueHeads + at.head]);
  }
  float total = w.pending > 0 ? shared.decay[w.pending - 1] : 0.0f;
  for (int t = 0; t < w.count; ++t) {
    const float own = __shfl_sync(0xffffffffu, g, t);
    total = (w.position + t) % kChunk == 0 ? own : total + own;
    if (at.lane == t) shared.token_decay[t] = total;
  }
  __syncwarp();
  if (w.place() > 0) add_decays({0, w.first_run(), w.place()}, at.lane, shared);
}

// Sums kCount values a lane over the warp, each in a tree that halves the lanes at each level; lane
// l is left with the sum of value l / (32 / kCount).
template <int kCount>
__device__ float spread_sum(float (&x)[kCount], int lane) {
  static_assert(kCount > 0 && kCount <= 32 && (kCount & (kCount - 1)) == 0);
  int offset = 16;
#pragma unroll
  for (int left = kCount; left > 1; left /= 2) {
    const bool upper = (lane & offset) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= left / 2) break;
      const float kept = upper ? x[i + left / 2] : x[i];
      const float sent = upper ? x[i] : x[i + left / 2];
      x[i] = kept + __shfl_xor_sync(0xffffffffu, sent, offset);
    }
    offset /= 2;
  }
  for (; offset > 0; offset /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], offset);
  return x[0];
}

// S^T k and S^T q of one token over the warp's rows.
__device__ void multiply_state(const Place& at, const Held& held,
                               const float (&vectors)[2][kKeyPad],
                               float (&out)[2][kRowGroups][kPadColumns + kOwned]) {
  float query = 0.0f, key = 0.0f;
#pragma unroll
  for (int r = 0; r < kRows; r += 4) {
    const float4 q = *reinterpret_cast<const float4*>(&vectors[0][at.first_row + r]);
    const float4 k = *reinterpret_cast<const float4*>(&vectors[1][at.first_row + r]);
    query = fmaf(held.s[r], q.x, query);
    key = fmaf(held.s[r], k.x, key);
    query = fmaf(held.s[r + 1], q.y, query);
    key = fmaf(held.s[r + 1], k.y, key);
    query = fmaf(held.s[r + 2], q.z, query);
    key = fmaf(held.s[r + 2], k.z, key);
    query = fmaf(held.s[r + 3], q.w, query);
    key = fmaf(held.s[r + 3], k.w, key);
  }
  out[0][at.warp % kRowGroups][at.column] = query;
  out[1][at.warp % kRowGroups][at.column] = key;
}

// q.k_j and k.k_j of the warp's slots j, times e^{G_i - G_j}; zero where j is not before i (for q:
// not before or at i).
__device__ void multiply_keys(const Place& at, const Held& held, const float (&vectors)[2][kKeyPad],
                              int place, const float (&decay)[kChunk], float (&out)[2][kChunk]) {
  constexpr int kSums = 2 * kSlots;
  float sums[kSums];
#pragma unroll
  for (int n = 0; n < kSums; ++n) sums[n] = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const float q = vectors[0][at.lane + 32 * i], k = vectors[1][at.lane + 32 * i];
#pragma unroll
    for (int n = 0; n < kSlots; ++n) {
      sums[2 * n] = fmaf(held.keys[n][i], q, sums[2 * n]);
      sums[2 * n + 1] = fmaf(held.keys[n][i], k, sums[2 * n + 1]);
    }
  }
  const float dot = spread_sum(sums, at.lane);
  const int index = at.lane / (32 / kSums), which = index % 2;
  const int slot = at.warp * kSlots + index / 2;
  if (slot >= kChunk || at.lane % (32 / kSums) != 0) return;
  const bool counts = slot < place || (which == 0 && slot == place);
  out[which][slot] = counts ? dot * expf(decay[place] - decay[slot]) : 0.0f;
}

// d and o of one token in the warp's columns; sums over j and over row groups in kRowGroups lanes
// and their tree. d joins the held writes.
__device__ void combine(const DeltaStepParams& p, const Place& at, const Window& w, int token,
                        int buffer, Held& held, Shared& shared) {
  const int position = w.position + token, place = position % kChunk;
  const Combination& from = shared.combination;
  const float state_decay = expf(shared.decay[place]);
  float output = state_decay * from.state[buffer][0][at.own_slot][at.own_column];
  float predicted = state_decay * from.state[buffer][1][at.own_slot][at.own_column];
#pragma unroll
  for (int i = 0; i < kWrites; ++i) {
    const int slot = at.own_slot + kRowGroups * i;
    output = fmaf(from.dots[buffer][0][slot], held.writes[i], output);
    predicted = fmaf(from.dots[buffer][1][slot], held.writes[i], predicted);
  }
#pragma unroll
  for (int offset = kOwned; offset < 32; offset *= 2) {
    output += __shfl_xor_sync(0xffffffffu, output, offset);
    predicted += __shfl_xor_sync(0xffffffffu, predicted, offset);
  }
  const float value = shared.values[token][at.own_column];
  const float write = at.owns_column() ? shared.beta[token] * (value - predicted) : 0.0f;
  output = fmaf(from.dots[buffer][0][place], write, output);
  if (!at.owns_column()) output = 0.0f;
#pragma unroll
  for (int i = 0; i < kWrites; ++i) {
    if (at.own_slot + kRowGroups * i == place) held.writes[i] = write;
  }
  if (place % kRowGroups == at.own_slot && at.owns_column() && position >= w.last_chunk) {
    const int row = at.head * kChunk + place;
    p.state.writes[row * kValueDim + at.value_column() + at.own_column] = write;
  }
  float squares = output * output;
#pragma unroll
  for (int offset = 1; offset < kOwned; offset *= 2) {
    squares += __shfl_xor_sync(0xffffffffu, squares, offset);
  }
  if (at.lane == 0) shared.squares[token][at.warp] = squares;
  __syncwarp();
  if (at.own_slot == 0) shared.values[token][at.own_column] = output;
}

// S <- e^{G_C} S + sum_j k_j (e^{G_C - G_j} d_j)^T over a full chunk; then nothing is pending.
__device__ void fold(const DeltaStepParams& p, const Place& at, Held& held, Shared& shared) {
  const float last = shared.decay[kChunk - 1];
  const float state_decay = expf(last);
#pragma unroll
  for (int r = 0; r < kRows; ++r) held.s[r] *= state_decay;
#pragma unroll
  for (int begin = 0; begin < kChunk; begin += kFolded) {
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kSlots; ++n) {
      const int row = at.warp * kSlots + n - begin;
      if (row < 0 || row >= kFolded) continue;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) shared.fold.keys[row][at.lane + 32 * i] = held.keys[n][i];
    }
#pragma unroll
    for (int i = begin / kRowGroups; i < (begin + kFolded) / kRowGroups; ++i) {
      const int slot = at.own_slot + kRowGroups * i;
      shared.fold.writes[slot - begin][at.own_column] =
          held.writes[i] * expf(last - shared.decay[slot]);
    }
    __syncthreads();
#pragma unroll 4
    for (int j = 0; j < kFolded; ++j) {
      const float write = shared.fold.writes[j][at.column];
#pragma unroll
      for (int r = 0; r < kRows; r += 4) {
        const float4 k = *reinterpret_cast<const float4*>(&shared.fold.keys[j][at.first_row + r]);
        held.s[r] = fmaf(k.x, write, held.s[r]);
        held.s[r + 1] = fmaf(k.y, write, held.s[r + 1]);
        held.s[r + 2] = fmaf(k.z, write, held.s[r + 2]);
        held.s[r + 3] = fmaf(k.w, write, held.s[r + 3]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kSlots; ++n) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) held.keys[n][i] = 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kWrites; ++i) held.writes[i] = 0.0f;
}

__device__ void store_s(const DeltaStepParams& p, const Place& at, const Held& held) {
  float* const s = p.state.s + at.head * kKeyDim * kValueDim + at.value_column() + at.column;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = at.first_row + r;
    if (row < kKeyDim && at.holds_column()) s[row * kValueDim] = held.s[r];
  }
}

// Needs the decays of the chunk up to the segment's last token in shared memory.
__device__ void run_segment(const DeltaStepParams& p, const Place& at, const Window& w,
                            const Segment& segment, Held& held, Shared& shared) {
#pragma unroll
  for (int n = 0; n < kSlots; ++n) {
    const int index = at.warp * kSlots + n - segment.place;
    if (index < 0 || index >= segment.count) continue;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      held.keys[n][i] = shared.vectors[segment.first + index][1][at.lane + 32 * i];
    }
  }
  for (int begin = 0; begin < segment.count; begin += kTogether) {
    const int together = min(kTogether, segment.count - begin);
    for (int n = 0; n < together; ++n) {
      const int token = segment.first + begin + n;
      multiply_state(at, held, shared.vectors[token], shared.combination.state[n]);
      multiply_keys(at, held, shared.vectors[token], segment.place + begin + n, shared.decay,
                    shared.combination.dots[n]);
    }
    __syncthreads();
    for (int n = 0; n < together; ++n) {
      combine(p, at, w, segment.first + begin + n, n, held, shared);
    }
    __syncthreads();
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
    convolve(p, at, w, vector, token, shared);
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
