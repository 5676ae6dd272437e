// Parameters of the prefill kernels: rows of a block of tokens, the experts' sorted plan.
//
// A block holds T tokens, 1 .. kPrefillTokensMax. Rows are row-major with a stride in elements; a
// stride of BF16 rows is a multiple of 8 and data is 16-byte aligned. Columns of a weight beyond
// `cols` are zero and those of an activation are taken as zero without being read. Sorted rows:
// the T * top_k pairs (token, slot) ordered by expert, then token; a token chooses an expert once.
#pragma once

#include "params.h"
#include "w8a8_params.h"

namespace moray::cuda {

inline constexpr int kPrefillTokensMax = 8192;
inline constexpr int kPlanChunkTokens = 64;  // tokens of one count in the sort
inline constexpr int kRowsTargetsMax = 4;

using Bf16 = unsigned short;

// x[r] = rows tokens[r] of table (BF16, [vocab, hidden], any alignment of 16 bytes), copied.
struct EmbedRowsParams {
  const Bf16* table;  // device or pinned host memory
  const int* tokens;  // [tokens]
  int count;
  int table_stride;
  Bf16* out;  // [count, kHidden], contiguous
};

// out = RmsNorm of ops.h with Precision::kBfloat16, a row at a time. Either output may be absent:
// rows (BF16, row stride `out_stride`) and quantised (value = codes * scale, scale = largest
// magnitude of the row's 128 columns / 448, computed from the BF16-rounded values; kHidden a
// multiple of 128; its cols = kHidden).
struct NormRowsParams {
  const Bf16* x;        // [count, kHidden], contiguous
  const float* weight;  // [kHidden], 16-byte aligned
  int count;
  Bf16* out;  // may be null
  int out_stride;
  QuantisedRows quantised;  // codes may be null
};

// quantised[r] = x[source[r]] as NormRowsParams quantises; cols a multiple of 128.
struct QuantiseRowsParams {
  const Bf16* x;
  int x_stride;
  int count;  // rows written
  QuantisedRows quantised;
};

// Sorted copies for kernels that cannot gather: sorted row r takes row sorted[r] / top_k, codes and
// scales alike.
struct GatherRowsParams {
  QuantisedRows x;
  const int* sorted;
  int count, top_k;
  QuantisedRows out;
};

enum class RowsOutput : int { kBf16 = 0, kF32 = 1, kAddBf16 = 2 };

// out[t, n] = x[t] . W[n], accumulated in FP32 (numbers: prefill.h), formats kFp8 and kBf16;
// kAddBf16: out = round(out + y). Targets may differ in format and output.
struct RowsTarget {
  Matrix weight;
  void* out;
  int out_stride;  // elements; kBf16 and kAddBf16: even
  RowsOutput output;
  int first_tile;  // filled by the launcher: of the target's tiles among all targets'
};
struct ProjectRowsParams {
  const Bf16* x;  // [tokens, x_stride]; columns [0, cols of the targets) are read
  int x_stride;
  int tokens;
  int target_count;
  RowsTarget targets[kRowsTargetsMax];
};

// Router and sort. In: logits FP32 [tokens, kExperts] and, if there is a shared expert, its gate's
// logit. Out as ops.h Route: ids and weights [tokens, kTopK] in descending weight, equal weights
// by lower id; shared_weight [tokens]. Then the plan, all of it in device memory:
//   counts      [chunks, kExperts]  pairs of each expert in each chunk of kPlanChunkTokens tokens;
//                                   after plan_tiles the sorted row of the first of them
//   tiles       [kExperts + T * top_k / tile_rows] in order of expert
//   tile_count  how many tiles there are
//   sorted      [T * top_k]  sorted row -> token * top_k + slot
//   row_of      [T * top_k]  token * top_k + slot -> sorted row
struct ExpertPlan {
  int* expert_ids;
  float* expert_weights;
  float* shared_weight;
  int* counts;
  ExpertTile* tiles;
  int* tile_count;
  int* sorted;
  int* row_of;
  int tile_rows;  // rows of a tile at most: 32 or 64, for W8A8 kW8a8TileRows
};
struct RouteRowsParams {
  const float* logits;
  const float* shared_logits;  // [tokens], or null
  int logits_stride, shared_stride;
  int tokens;
  ExpertPlan plan;
};

// inner[r] = round(silu(gate x[t]) * (up x[t])), r sorted row, t = sorted[r] / top_k; the shared
// expert's rows are the tokens. Products in FP32 as ProjectRowsParams.
struct GateUpRowsParams {
  const Bf16* x;
  int x_stride;
  int tokens, top_k;
  ExpertRecords experts, shared;  // shared.width 0: none
  ExpertPlan plan;
  int shared_tiles;    // filled by the launcher: token tiles of the shared expert
  Bf16* inner;         // [T * top_k, experts.gate rows], stride inner_stride
  Bf16* shared_inner;  // [T, shared.width]
  int inner_stride, shared_stride;
};

// out[p] = BF16(down inner[row_of[p]]) for the pair p = token * top_k + slot; shared_out[t] alike.
struct DownRowsParams {
  const Bf16* inner;
  const Bf16* shared_inner;
  int inner_stride, shared_stride;
  int tokens, top_k;
  ExpertRecords experts, shared;
  ExpertPlan plan;
  int shared_tiles;
  Bf16* out;         // [T * top_k, kHidden]
  Bf16* shared_out;  // [T, kHidden]
};

// residual[t] = round(residual[t] + sum_i weights[t, i] out[t * top_k + i] + shared_weight[t]
// shared_out[t]), slots in order, then the shared expert; FP32, one rounding.
struct CombineRowsParams {
  const Bf16* out;
  const Bf16* shared_out;  // null: none
  const float* expert_weights;
  const float* shared_weight;
  int tokens;
  Bf16* residual;  // [tokens, kHidden], contiguous
};

}  // namespace moray::cuda
