// Parameters of the decode kernels: one struct a kernel, included by host launchers and device
// code.
//
// Invariant: plain types; pointers are device addresses (pinned host memory where said). What a
// kernel reads of them before wait_for_previous() is weights only, or is named in its source.
#pragma once

#include "src/kernels/cuda/params.h"

namespace moray::cuda {

using Bfloat16 = unsigned short;

inline constexpr int kProjectTargetsMax = 4;
inline constexpr int kDecodeColumnsMax = 4096;
inline constexpr int kRoutedExpertsMax = 512;
inline constexpr int kTopKMax = 16;
inline constexpr int kTileRows = 16;  // rows of a matrix that one product takes

// Shapes of a block, shared by launchers and kernels. A block has one warp for each slice of the
// columns, and as many groups of such warps as make at least 8; each group has tiles of its own. A
// slice is one or two blocks of 128 columns, those of an FP8 scale: one where a block streams many
// tiles (more warps hide more latency), two where a warp has little to stream but one tile.
inline constexpr int kSliceUnit = 128;
inline constexpr int kHiddenSpan = 1, kAddSpan = 2, kInnerSpan = 2;
constexpr int slices_of(int columns, int span) {
  return (columns + span * kSliceUnit - 1) / (span * kSliceUnit);
}
constexpr int groups_of(int columns, int span) {
  return (7 + slices_of(columns, span)) / slices_of(columns, span);
}
constexpr int warps_of(int columns, int span) {
  return slices_of(columns, span) * groups_of(columns, span);
}

// A slot of a warp's ring holds a group: 16 rows x 128 bytes and an FP8 scale.
inline constexpr int kGroupBytes = kTileRows * 128;
inline constexpr int kRingSlotBytes = kGroupBytes + 16;
// Slots a warp. 16 warps x 3 are 96 KiB a multiprocessor on sm_90, less than half of its shared
// memory, so that two kernels overlap; sm_89 and sm_120 have 100 KiB.
constexpr int ring_depth(int arch, int tokens) {
  return arch == 900 ? (tokens <= 8 ? 3 : 2) : (tokens <= 8 ? 2 : 1);
}
// norm_head has no kernel worth overlapping with and takes most of the shared memory.
constexpr int head_ring_depth(int arch, int tokens) {
  return arch == 900 ? (tokens <= 8 ? 5 : 4) : ring_depth(arch, tokens);
}
// project_add: a block has one tile a group, all of it in flight at once where it fits.
constexpr int add_ring_depth(int arch, bool fp8) {
  return kAddSpan * (arch == 900 && !fp8 ? 2 : 1);
}
// experts_down: a block's warps, in groups of one warp a slice; a group takes every n-th entry (a
// distinct expert or the shared one) of its rows. One token: all entries in flight at once, one a
// group with up to 18 warps, else two a group, so that the block leaves room for a neighbour.
// Several tokens: as many warps as their registers allow; sm_89 and sm_120 have less shared memory.
constexpr int inner_slices(int expert_dim, int shared_dim) {
  return slices_of(expert_dim > shared_dim ? expert_dim : shared_dim, kInnerSpan);
}
constexpr int down_groups(int arch, int tokens, int slices, int entries) {
  const int limit = (arch != 900 ? 12 : tokens == 1 ? 18 : tokens <= 8 ? 16 : 12) / slices;
  if (arch == 900 && tokens == 1 && entries > limit) return (entries + 1) / 2;
  return entries < limit ? entries : limit > 0 ? limit : 1;
}
constexpr int down_warps(int arch, int tokens, int top_k, int expert_dim, int shared_dim) {
  const int slices = inner_slices(expert_dim, shared_dim);
  return slices * down_groups(arch, tokens, slices, top_k + (shared_dim > 0 ? 1 : 0));
}
constexpr int down_ring_depth(int arch, int tokens, int top_k, int expert_dim, int shared_dim) {
  const int warps = down_warps(arch, tokens, top_k, expert_dim, shared_dim);
  const int entries = (top_k + (shared_dim > 0 ? 1 : 0)) * inner_slices(expert_dim, shared_dim);
  return kInnerSpan * (arch == 900 && (tokens > 1 || warps < entries) ? 2 : 1);
}
// A warp's scratch: normed vectors of 4 tokens on their way into registers, then the sums of
// batches of kBatchTiles tiles: two batches where memory allows, so that one barrier each will do.
inline constexpr int kBatchTiles = 2;
inline constexpr int kStagedTokenBytes = kSliceUnit * 2 + 16;  // 16: spreads tokens over banks
inline constexpr int kPartialTokenFloats = kTileRows + 4;      // 4: likewise
constexpr int partial_buffers(int arch, int tokens) {
  return tokens == 1 || (arch == 900 && tokens <= 8) ? 2 : 1;
}
constexpr int scratch_bytes(int arch, int tokens) {
  const int staged = (tokens < 4 ? tokens : 4) * kStagedTokenBytes;
  const int partials =
      partial_buffers(arch, tokens) * kBatchTiles * tokens * kPartialTokenFloats * 4;
  return staged > partials ? staged : partials;
}
constexpr int add_scratch_bytes(int tokens) {  // a warp of project_add: one tile
  return tokens * kPartialTokenFloats * 4;
}
// experts_down: rings, then the products [tokens, top_k + 1, slices, kTileRows], in whose place the
// choice of experts uses 16 bytes an expert before.
constexpr int down_shared_bytes(int arch, int tokens, int top_k, int experts, int expert_dim,
                                int shared_dim) {
  const int products = tokens * (top_k + 1) * inner_slices(expert_dim, shared_dim) * kTileRows * 4;
  const int choice = tokens > 1 ? experts * 16 : 0;
  return down_warps(arch, tokens, top_k, expert_dim, shared_dim) *
             down_ring_depth(arch, tokens, top_k, expert_dim, shared_dim) * kRingSlotBytes +
         (products > choice ? products : choice);
}

// Elements a row of a weight matrix takes in memory (params.h, Matrix::stride).
constexpr int stride_of(int columns) {
  return (columns + 63) / 64 * 64;
}

struct EmbedParams {
  const Step* step;
  Matrix table;        // [vocab, hidden] kBf16; may lie in pinned host memory
  Bfloat16* residual;  // [tokens, hidden]
  int tokens;
};

struct ProjectTarget {
  Matrix weight;  // [N, hidden]
  float* y;       // [tokens, N], row stride y_stride
  int y_stride;
  int first_block;  // set by the launcher: blocks [first_block, first_block + blocks) are its own
  int blocks;
};
struct NormProjectParams {
  const Bfloat16* residual;  // [tokens, hidden]
  const float* norm_weight;  // [hidden]
  ProjectTarget targets[kProjectTargetsMax];
  int target_count;
  int tokens;
};

struct ProjectAddParams {
  const Bfloat16* x;   // [tokens, weight.cols]
  Matrix weight;       // [hidden, K]
  Bfloat16* residual;  // [tokens, hidden], updated
  int tokens;
};

// What norm_route, experts_gate_up and experts_down hand to one another; one for all layers.
struct RoutingBuffers {
  Bfloat16* x;            // [tokens, hidden] normed input of the experts
  float* logits;          // [tokens, experts]
  float* shared_logit;    // [tokens]
  Bfloat16* inner;        // [tokens, top_k + 1, inner_stride], slot top_k is the shared expert's
  int* expert_ids;        // [tokens, top_k]
  float* expert_weights;  // [tokens, top_k]
  float* shared_weight;   // [tokens]
};
// Elements of a row of RoutingBuffers::inner.
constexpr int inner_stride(int expert_dim, int shared_dim) {
  return stride_of(expert_dim > shared_dim ? expert_dim : shared_dim);
}

struct NormRouteParams {
  const Bfloat16* residual;  // [tokens, hidden]
  const float* norm_weight;  // [hidden]
  Matrix router;             // [experts, hidden]
  Matrix shared_gate;        // [1, hidden]; data null: no shared expert
  ExpertRecords shared;      // one record; base null: no shared expert
  RoutingBuffers routing;
  int tokens;
};

struct ExpertsParams {
  ExpertRecords experts;
  ExpertRecords shared;  // one record; base null: no shared expert
  RoutingBuffers routing;
  Bfloat16* residual;  // [tokens, hidden], updated by experts_down
  int tokens;
};

// Which ids greedy decoding may choose.
struct Sampleable {
  int limit;                   // ids below it (at most kVocabRows)
  const unsigned int* banned;  // bit id % 32 of word id / 32 set: never chosen; may be null
};
struct Candidate {
  float logit;
  int id;  // -1: none
};

struct NormHeadParams {
  const Bfloat16* residual;  // [tokens, hidden]
  const float* norm_weight;  // [hidden]
  Matrix head;               // [vocab rows, hidden]
  Sampleable sampleable;
  float* logits;          // [rows, head.rows]
  Candidate* candidates;  // [rows, blocks of the grid], or null
  int tokens, rows;       // logits of the last `rows` of the tokens
};

struct GreedyParams {
  const Candidate* candidates;  // [rows, candidate_count]
  int candidate_count;
  Sampleable sampleable;
  int* chosen;               // [rows]
  Step* step;                // null: only `chosen`
  unsigned long long* ring;  // pinned host memory, or null
  int ring_entries;
  int rows;
};

}  // namespace moray::cuda
