// The op vocabulary: what a forward pass is made of, as parameter structs and one contract each.
//
// The same structs are taken by ref::<op> (plain oracles, double where cheap) and cpu::<op>
// (production). Central invariant: a token's result depends only on the sequence before it; it is
// bit-equal whatever the number of tokens in the call, the split of a prompt into calls and the
// thread count. Each output element therefore has one fixed order of summation.
//
// Numbers. All activations are FP32 arrays. Under Precision::kBfloat16 every value that feeds a
// matrix product (norm outputs, mixer outputs, the SiLU product) and the residual stream after
// each addition is rounded to BF16 (nearest even); products accumulate in FP32. Under kFloat32
// nothing is rounded. Outputs of projections, router, softmax, gates and recurrent states are
// always FP32.
//
// No op allocates, blocks or reads the environment; workspace is passed in, at least as many floats
// as the op's *_workspace_floats() says for the same dimensions and thread count (one buffer may
// serve all ops in turn; 64-byte alignment is a little faster). Other pointers may be unaligned;
// outputs never alias inputs unless said. Zero tokens are legal and do nothing.
#pragma once

#include <cstdint>
#include <span>

#include "src/tensor/view.h"

namespace moray {

enum class Precision : uint8_t { kFloat32, kBfloat16 };
enum class NormKind : uint8_t { kZeroCentred, kPlain };  // x * (1 + w), x * w

// Tokens that share one recurrent state before it is folded; positions 64n..64n+63 form a chunk.
inline constexpr int64_t kDeltaChunk = 64;

// out[t, :] = row tokens[t] of table [vocab, hidden] (F32, F16 or BF16), widened.
struct EmbedArgs {
  MatrixView table;
  std::span<const int32_t> tokens;
  float* out;  // [tokens, table.cols]
};

// out = round( x * rsqrt(mean(x^2) + eps) * (1 + w) ), or for kPlain round( w * round(x *
// rsqrt(...)) ), a row at a time; statistics in FP32 (oracle: double). out may alias x.
struct RmsNormArgs {
  const float* x;       // [rows, dim]
  const float* weight;  // [dim]
  int64_t rows;
  int64_t dim;
  float eps;
  NormKind kind;
  Precision precision;
  float* out;  // [rows, dim]
};

// y_i[t, n] = sum_k x[t, k] W_i[n, k] for several matrices that share one input, in one dispatch.
// FP8 blocks: sum over a 128-slice in FP32, times the block's scale, slices added in order.
// Under kBfloat16 x must hold BF16 values (it is packed without loss; products may read denormals
// of x as zero, below 2^-126); under kFloat32 any.
// `add`: y += instead of y =, then rounded as the residual stream is (kBfloat16 only).
// Cost: every W read once per call for up to 16 tokens; 2 tokens N K FLOP.
struct LinearTarget {
  MatrixView weight;  // [N, K]
  float* y;           // [tokens, N], row stride y_stride
  int64_t y_stride;
};
struct LinearArgs {
  const float* x;  // [tokens, K]
  int64_t tokens;
  int64_t k;
  std::span<const LinearTarget> targets;
  enum class Output : uint8_t { kStore, kAddToResidual } output = Output::kStore;
  Precision precision;
  std::span<float> workspace;  // at least linear_workspace_floats(...)
};

// Gated delta net between its in- and out-projections (qwen3_5 layout), for consecutive tokens of
// one sequence. With C = 2 nk dk + nv dv channels (q | k | v), r = nv / nk, per token:
//   c = silu(sum_j conv[:, j] * qkv_{t-3+j})
//   q, k <- x * rsqrt(sum x^2 + 1e-6) per head, q also times dk^-1/2
//   beta = sigmoid(b); g = -exp(A_log) * softplus(a + dt_bias)
//   S = exp(g) S;  d = beta (v - S^T k);  S += k d^T;  o = S^T q       (per value head)
//   out = round( o * rsqrt(mean o^2 + eps) * norm * silu(z) )          (per value head)
// evaluated in the chunked form on the absolute grid of kDeltaChunk positions: the state holds S at
// the chunk's start and, for the chunk's tokens so far, k_j, d_j and G_j = sum of g, so that
//   d_i = beta_i (v_i - e^{G_i} S^T k_i - sum_{j<i} (k_i.k_j) e^{G_i-G_j} d_j)
//   o_i = e^{G_i} S^T q_i + sum_{j<=i} (q_i.k_j) e^{G_i-G_j} d_j
// S is folded (S <- e^{G_C} S + sum_j e^{G_C-G_j} k_j d_j^T) when the first token of the next chunk
// arrives, so a state can drop its last tokens by lowering `position` within the chunk.
// Source: Yang et al., Gated Delta Networks (2024); lazily replayed inputs after vLLM's ReplaySSM.
//
// Let `position` be the number of tokens a state has seen and c = 64 * ((position - 1) / 64) the
// start of its open chunk. Row r of conv_tail is the input of position c - (taps - 1) + r, zero
// before the sequence; row j of keys, writes and log_decay belongs to position c + j. A state may
// be set back to any position in [c + 1, position] at no cost, and no further. A call at position
// 0 ignores what the state holds, so a new sequence needs no clearing.
struct GdnStateView {
  float* conv_tail;  // [taps - 1 + kDeltaChunk, C] pre-conv inputs around the open chunk
  float* s;          // [nv, dk, dv] at the chunk's start
  float* keys;       // [nk, kDeltaChunk, dk] normalised keys of the open chunk
  float* writes;     // [nv, kDeltaChunk, dv] d_j of the open chunk
  float* log_decay;  // [nv, kDeltaChunk] G_j of the open chunk
};
struct GdnArgs {
  const float* qkv;  // [tokens, C]
  const float* z;    // [tokens, nv * dv]
  const float* b;    // [tokens, nv]
  const float* a;    // [tokens, nv]
  int64_t tokens;
  int64_t position;          // of the first token in its sequence
  const float* conv_weight;  // [C, taps]
  const float* a_log;        // [nv]
  const float* dt_bias;      // [nv]
  const float* norm_weight;  // [dv]
  int64_t key_heads, value_heads, key_dim, value_dim, conv_taps;
  float eps;
  Precision precision;
  GdnStateView state;
  float* out;                  // [tokens, nv * dv]
  std::span<float> workspace;  // at least gdn_workspace_floats(...)
};

// Keys and values of one layer, [kv_head, capacity, head_dim] each, F32 or BF16.
struct KvView {
  void* keys;
  void* values;
  int64_t capacity;
  DType dtype;
};

// Full attention between its in- and out-projections, for consecutive tokens of one sequence.
// q, k are normed per head (zero-centred or plain), their first rotary_dim dims rotated in
// half-split pairs (i, i + rotary_dim/2) by position * inv_freq[i] (product in FP32; cos and sin
// times rope_scale), each then rounded once under kBfloat16 (v too), and k and v appended to the
// cache; then for each query head h over KV head h / (n/n_kv), scores and softmax in FP32:
//   out = round( softmax_{j <= position}(q.k_j * head_dim^-1/2) v  [* sigmoid(gate)] )
// With a gate, q_gate holds per head first head_dim query values, then head_dim gate values.
// Cost: (position + tokens/2) * 2 * n_kv * head_dim cache elements read per 1..16 tokens.
struct AttentionArgs {
  const float* q_gate;  // [tokens, heads * head_dim * (has_gate ? 2 : 1)]
  const float* k;       // [tokens, kv_heads * head_dim]
  const float* v;       // [tokens, kv_heads * head_dim]
  int64_t tokens;
  int64_t position;
  const float* q_norm;    // [head_dim]
  const float* k_norm;    // [head_dim]
  const float* inv_freq;  // [rotary_dim / 2]
  float rope_scale;       // YaRN's attention factor on cos and sin; 1 otherwise
  int64_t heads, kv_heads, head_dim, rotary_dim;
  bool has_gate;
  float eps;
  NormKind norm_kind;
  Precision precision;
  KvView cache;  // positions [0, position) valid; this call fills [position, position + tokens)
  float* out;    // [tokens, heads * head_dim]
  std::span<float> workspace;  // at least attention_workspace_floats(...)
};

// Router: logits = x gate^T in FP32, p = softmax over all experts, the top_k largest (ties: lower
// id), weights p_e / sum p (normalise) or p_e. A token's expert ids are in descending weight.
// shared_weight[t] = sigmoid(x . shared_gate) if there is a shared expert.
struct RouteArgs {
  const float* x;  // [tokens, hidden]
  int64_t tokens;
  MatrixView gate;         // [experts, hidden]
  MatrixView shared_gate;  // [1, hidden] or empty
  int64_t top_k;
  bool normalise;
  int32_t* expert_ids;         // [tokens, top_k]
  float* expert_weights;       // [tokens, top_k]
  float* shared_weight;        // [tokens]
  std::span<float> workspace;  // at least route_workspace_floats(...)
};

// Experts and the residual addition, each distinct expert read once per call:
//   h[t] = round( h[t] + sum_i w_i down_i(round(silu(gate_i x) * (up_i x))) + s down_s(...) )
// summed in order: slots 0..top_k-1, then the shared expert; one rounding.
struct ExpertView {
  MatrixView gate;  // [expert_dim, hidden]
  MatrixView up;    // [expert_dim, hidden]
  MatrixView down;  // [hidden, expert_dim]

  bool empty() const { return gate.empty(); }
};
struct MoeArgs {
  const float* x;  // [tokens, hidden], rounded as linear's input
  int64_t tokens;
  int64_t hidden;
  std::span<const ExpertView> experts;
  ExpertView shared;  // empty views if there is none
  int64_t top_k;
  const int32_t* expert_ids;    // [tokens, top_k]
  const float* expert_weights;  // [tokens, top_k]
  const float* shared_weight;   // [tokens]
  Precision precision;
  float* residual;             // [tokens, hidden], updated
  std::span<float> workspace;  // at least moe_workspace_floats(...)
};

// Floats of workspace each op needs; only dimension fields, `tokens` and, for attention, `position`
// are read. Monotonic in tokens, position and threads: size once for the largest call.
int64_t linear_workspace_floats(int64_t tokens, int64_t k, int threads);
int64_t gdn_workspace_floats(const GdnArgs& dimensions, int threads);
int64_t attention_workspace_floats(const AttentionArgs& dimensions, int threads);
int64_t route_workspace_floats(int64_t tokens, int64_t hidden, int64_t experts, int threads);
int64_t moe_workspace_floats(const MoeArgs& dimensions, int threads);

}  // namespace moray
