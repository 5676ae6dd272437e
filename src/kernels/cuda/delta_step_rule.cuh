// The delta rule of a step: products of the state and the keys with a token's q and k, their
// combination to d and o, and the fold of a full chunk into S.
//
// Invariant: the order of every sum is a function of a token's place in its chunk only.
#pragma once

#include "src/kernels/cuda/delta_math.cuh"
#include "src/kernels/cuda/delta_step_place.cuh"

namespace moray::cuda {

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
  out[which][slot] = counts ? dot * exp_fast(decay[place] - decay[slot]) : 0.0f;
}

// d and o of one token in the warp's columns; sums over j and over row groups in kRowGroups lanes
// and their tree. d joins the held writes.
__device__ void combine(const DeltaStepParams& p, const Place& at, const Window& w, int token,
                        int buffer, Held& held, Shared& shared) {
  const int position = w.position + token, place = position % kChunk;
  const Combination& from = shared.combination;
  const float state_decay = exp_fast(shared.decay[place]);
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
  const float state_decay = exp_fast(last);
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
          held.writes[i] * exp_fast(last - shared.decay[slot]);
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

}  // namespace moray::cuda
