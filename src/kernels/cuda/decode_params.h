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
// Columns of a matrix that one warp multiplies; a block has one warp for each such slice.
inline constexpr int kSliceColumns = 256;
inline constexpr int kDecodeColumnsMax = 4096;
inline constexpr int kRoutedExpertsMax = 512;
inline constexpr int kTopKMax = 16;
inline constexpr int kTileRows = 16;  // rows of a matrix that one product takes

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
  return ((expert_dim > shared_dim ? expert_dim : shared_dim) + 63) / 64 * 64;
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
