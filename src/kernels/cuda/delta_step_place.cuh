// A block of the delta net's decode step: its share of a value head, what its threads hold of the
// state, and where the step's tokens stand on the chunk grid. Included by delta_step.cu alone.
#pragma once

#include "constants.cuh"
#include "src/kernels/cuda/delta_math.cuh"
#include "src/kernels/cuda/delta_params.h"
#include "src/kernels/cuda/delta_step_shape.h"
#include "src/kernels/cuda/device/cluster.cuh"
#include "src/kernels/cuda/device/number.cuh"
#include "src/kernels/cuda/device/prefetch.cuh"

namespace moray::cuda {
namespace {

constexpr int kChunk = kDeltaChunkTokens;
constexpr int kTokens = kStepTokensMax;
constexpr int kRowGroups = delta_step_row_groups(kArch);  // of S; lanes that share a sum over j
constexpr int kOwned = 32 / kRowGroups;                   // columns a warp combines
constexpr int kPast = kConvTaps - 1;

constexpr int kPerLane = (kKeyDim + 31) / 32;  // elements of a key a lane holds, 32 apart
constexpr int kKeyPad = kPerLane * 32;         // zero from kKeyDim on
constexpr int kRows = kKeyPad / kRowGroups;
constexpr int kSlices = delta_step_slices(kArch, kValueDim);
constexpr int kColumns = kValueDim / kSlices;
constexpr int kColumnGroups = (kColumns + 31) / 32;
constexpr int kPadColumns = kColumnGroups * 32;
constexpr int kWarps = delta_step_warps(kArch, kValueDim);
constexpr int kThreads = kWarps * 32;
constexpr int kSlots = (kChunk + kWarps - 1) / kWarps;  // keys a warp holds
constexpr int kWrites = kChunk / kRowGroups;            // writes a lane holds for its column
constexpr int kTogether = kColumnGroups == 1 ? 4 : 2;   // tokens between barriers
constexpr int kFolded = 16;                             // slots folded between barriers
constexpr int kParts = 2 + kColumnGroups;               // vectors a token brings: q, k, v
constexpr int kChannels = 2 * kKeyHeads * kKeyDim + kValueHeads * kValueDim;
constexpr int kRepeat = kValueHeads / kKeyHeads;

static_assert(kKeyDim > 0 && kValueHeads % kKeyHeads == 0 && kConvTaps >= 1 && kConvTaps <= 8);
static_assert(kKeyDim <= 128 && kValueDim <= 128 && kKeyDim % 4 == 0 && kValueDim % 4 == 0);
static_assert(kWarps >= kParts && kPadColumns == kOwned * kWarps);

struct Combination {
  float state[kTogether][2][kRowGroups][kPadColumns + kOwned];  // parts of S^T k, S^T q
  float dots[kTogether][2][kChunk];  // k.k_j and q.k_j times the decay between, 0 for no such j
};
struct alignas(16) Fold {
  float keys[kFolded][kKeyPad];
  float writes[kFolded][kPadColumns];
};
struct Shared {
  alignas(16) float vectors[kTokens][2][kKeyPad];  // q, k of the step's tokens
  float values[kTokens][kPadColumns];              // v, then o
  union {
    Combination combination;
    Fold fold;
  };
  float squares[kTokens][kWarps];             // of o, a warp's columns
  Exchange<kSlices, kTokens> totals;          // the blocks' sums of squares of each token
  float decay[kChunk];                        // G_j of the chunk at hand
  float token_decay[kTokens], beta[kTokens];  // G and beta of the step's tokens
  float norm[kPadColumns];
  int last;  // whether this block is the last of its key head
};
static_assert(sizeof(Shared) <= 48 * 1024);

// What a thread holds of the state.
struct Held {
  float s[kRows];                // rows from its warp's first on, one column
  float keys[kSlots][kPerLane];  // elements lane, lane + 32, ..
  float writes[kWrites];         // slots from its own on, kRowGroups apart, one column
};

// Where a thread stands.
struct Place {
  int head, slice, key_head, warp, lane;
  int first_row, column;     // of its part of S; columns count from the block's first
  int own_slot, own_column;  // of its writes

  __device__ bool holds_column() const { return column < kColumns; }
  __device__ bool owns_column() const { return own_column < kColumns; }
  __device__ int value_column() const { return slice * kColumns; }
  // One block a key head keeps the state that all of its blocks share.
  __device__ bool keeps_key_head() const { return slice == 0 && head % kRepeat == 0; }
};

__device__ Place find_place() {
  Place at;
  at.slice = blockIdx.x;
  at.head = blockIdx.y;
  at.key_head = at.head / kRepeat;
  at.warp = threadIdx.x / 32;
  at.lane = threadIdx.x % 32;
  at.first_row = at.warp % kRowGroups * kRows;
  at.column = at.warp / kRowGroups * 32 + at.lane;
  at.own_slot = at.lane / kOwned;
  at.own_column = at.warp * kOwned + at.lane % kOwned;
  return at;
}

// The chunk grid around a step. `opened`: its last token is in another chunk than the state.
struct Window {
  int position, count;
  int chunk, last_chunk;  // starts of the state's open chunk, before and after
  int pending;            // tokens of the open chunk before the step

  __device__ bool opened() const { return last_chunk >= position; }
  __device__ int place() const { return position % kChunk; }  // of the first token in its chunk
  __device__ int first_run() const { return min(count, kChunk - place()); }
};

__device__ Window find_window(const DeltaStepParams& p) {
  Window w;
  w.position = p.step->position;
  w.count = min(p.step->count, p.tokens);
  w.chunk = w.position > 0 ? (w.position - 1) / kChunk * kChunk : 0;
  w.last_chunk = (w.position + w.count - 1) / kChunk * kChunk;
  w.pending = w.position - w.chunk;
  return w;
}

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

}  // namespace
}  // namespace moray::cuda
