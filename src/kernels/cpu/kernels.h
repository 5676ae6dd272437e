// The table of inner loops behind the CPU ops: plain functions over raw pointers, filled once a
// level by avx2/ and avx512/.
//
// Invariant: this header holds declarations and plain structs only, nothing inline, because files
// compiled for different instruction sets share it.
#pragma once

#include <cstdint>

#include "src/kernels/cpu/dispatch.h"

namespace moray::cpu {

// How a product reads its input: rows padded with zeros to a multiple of 128; FP32, or BF16 for
// products by AVX512_BF16, either in order or dealt: of each 64 values the 32 at even places, then
// the 32 at odd places, as FP8 codes come apart.
enum class Engine : uint8_t { kF32, kBf16, kBf16Dealt };
inline constexpr int kEngines = 3;

// Rows [row_begin, row_end) of one matrix times `tokens` rows of x.
struct LinearJob {
  const void* weight;
  const float* scales;  // of the whole matrix, FP8 only
  int64_t scale_cols;
  const uint8_t* normal_tiles;  // of the whole matrix, as in MatrixView; may be null
  int64_t k;
  int64_t row_begin, row_end;  // row_begin a multiple of 4
  const void* x;               // float or BF16 bits, as the engine reads it
  int64_t x_stride;            // elements
  const int32_t* x_rows;       // x row of each token, or null for 0, 1, 2...
  int64_t tokens;
  float* y;  // y[t * y_stride + row - row_begin]
  int64_t y_stride;
  bool add;          // y += rather than y =
  bool round_sum;    // to BF16, after the addition
  void* scratch;     // kLinearTileRows * padded_k(k) floats
  const void* next;  // what this worker reads after these rows, to be prefetched; may be null
};
inline constexpr int64_t kLinearTileRows = 16;

struct NormJob {
  const float* x;
  const float* weight;
  int64_t rows, dim;
  float eps;
  bool zero_centred, round;
  float* out;
};

// The hidden values of some tokens of one expert: out[t, r] = round(silu(gate[t, r]) * up[t, r]).
struct SiluJob {
  const float* gate;  // [tokens, rows], stride `stride`
  const float* up;    // likewise
  int64_t tokens, rows, stride;
  void* out;  // rows as `engine` reads them, out_stride elements apart
  int64_t out_stride;
  int64_t out_column;  // of r = 0, a multiple of 16
  Engine engine;
  bool round;
};

// residual[t, r] = round(residual[t, r] + sum_i weights[t, i] y[index[t, i], r] + the shared term).
struct CombineJob {
  float* residual;  // [tokens, rows], stride `residual_stride`
  int64_t tokens, rows, residual_stride;
  const float* y;        // [*, rows], dense
  const int32_t* index;  // [tokens, slots] rows of y
  const float* weights;  // [tokens, slots]
  int64_t slots;
  const float* shared_y;       // [tokens, rows], dense, or null
  const float* shared_weight;  // [tokens]
  bool round;
};

// Convolution, SiLU, head norms and gates of tokens [0, tokens) of a block.
struct GdnInputJob {
  const float* const* rows;  // [taps - 1 + tokens] pre-conv inputs; token t is rows[taps - 1 + t]
  const float* conv_weight;  // [channels, taps]
  const float* b;            // [tokens, value_heads]
  const float* a;
  const float* a_log;
  const float* dt_bias;
  int64_t tokens, taps, key_heads, value_heads, key_dim, value_dim;
  float* mixed;  // [tokens, channels]: q (normed and scaled), k (normed), v
  float* beta;   // [tokens, value_heads]
  float* g;      // [tokens, value_heads]
};
inline constexpr int64_t kGdnBlockTokens = 16;
inline constexpr int64_t kGdnTaps = 8;  // most

// All tokens of a call for one value head.
struct GdnHeadJob {
  const float* q;  // [tokens, key_dim], stride `mixed_stride`; likewise k and v
  const float* k;
  const float* v;
  int64_t mixed_stride;
  const float* beta;  // [tokens], stride `gate_stride`; likewise g
  const float* g;
  int64_t gate_stride;
  const float* z;  // [tokens, value_dim], stride `out_stride`
  float* out;      // likewise
  int64_t out_stride;
  const float* norm_weight;
  float eps;
  bool round;
  int64_t tokens, position, key_dim, value_dim;
  float* s;           // this head's part of the state
  const float* keys;  // of its key head; rows of this call's tokens are not written here
  float* writes;
  float* log_decay;
  float* scratch;  // gdn_head_scratch_floats
};

// One head of q or k: norm, rotation, rounding.
struct HeadJob {
  const float* x;       // [dim]
  const float* weight;  // [dim]
  const float* cosine;  // [rotary_dim / 2], already times rope_scale
  const float* sine;
  int64_t dim, rotary_dim;
  float eps;
  bool zero_centred, round;
  float* out;  // [dim]
};

// Adds p V over one range of keys to the sums of some queries.
struct ValuesJob {
  const void* values;  // [keys, dim] of the range
  bool bf16;           // else float
  int64_t dim;
  const float* p;  // [queries, p_stride]
  int64_t p_stride;
  const int32_t* ends;  // [queries] keys each may see, counted from the range's first
  int64_t queries;
  float* sums;  // [queries, sum_stride]
  int64_t sum_stride;
};

struct Kernels {
  Level level;
  bool has_bf16_products;
  // [Engine][WeightKind]; kBf16 only for BF16 weights, kBf16Dealt only for FP8.
  void (*linear[kEngines][4])(const LinearJob&);
  void (*pack_f32)(const float* x, int64_t k, float* out, int64_t padded);
  void (*pack_bf16)(const float* x, int64_t k, uint16_t* out, int64_t padded);
  // Null without BF16 products.
  void (*pack_bf16_dealt)(const float* x, int64_t k, uint16_t* out, int64_t padded);
  void (*widen)(const void* from, int weight_kind, int64_t count, float* out);
  void (*rms_norm)(const NormJob&);
  void (*silu_product)(const SiluJob&);
  void (*combine)(const CombineJob&);
  void (*gdn_input)(const GdnInputJob&);
  void (*gdn_head)(const GdnHeadJob&);
  void (*prepare_head)(const HeadJob&);
  // s <- e^{s scale - m} for count scores s, m the largest s scale; the sum goes to *total.
  void (*softmax_part)(float* scores, int64_t count, float scale, float* largest, float* total);
  void (*add_values)(const ValuesJob&);
  // sums <- sums a + part b.
  void (*merge_sums)(float* sums, float a, const float* part, float b, int64_t count);
  // out = round(sums / total * sigmoid(gate)); gate may be null.
  void (*finish_head)(const float* sums, float total, const float* gate, int64_t dim, bool round,
                      float* out);
  // out[i] = f(in[i]); for tests and small vectors.
  void (*exp)(const float* in, int64_t count, float* out);
  void (*sigmoid)(const float* in, int64_t count, float* out);
  void (*silu)(const float* in, int64_t count, float* out);
  void (*softplus)(const float* in, int64_t count, float* out);
};

// Column of Kernels::linear for a dtype.
enum WeightKind : int { kWeightF32, kWeightF16, kWeightBf16, kWeightFp8 };

}  // namespace moray::cpu
