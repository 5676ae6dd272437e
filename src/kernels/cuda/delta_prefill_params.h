// What the three kernels of a prefill block hand to each other through the workspace.
//
// The block is cut by the absolute grid of chunks: `chunks` of them from position first_chunk on,
// the first being the state's open chunk (unless the sequence starts here), so that its earlier
// tokens, the pending ones, take part with the keys and writes that the state holds. Tiles of 64
// tokens have rows of whole powers of two, zero beyond the model's dimension.
//
// Of one value head and chunk, with R the right-hand sides and D the writes (row a token):
//   R = beta V - (beta e^G) (K S),   D = R + inverse R,   O = e^G (Q S) + mix D,
//   S <- e^{G_C} S + sum_j k_j (e^{G_C - G_j} d_j)^T
//   inverse = (I + L)^-1 - I, L_ij = beta_i e^{G_i - G_j} k_i.k_j (j < i),
//   mix_ij = e^{G_i - G_j} q_i.k_j (j <= i)
// A pending token has its old write as R's row, 0 for beta; a token past the end is zero.
#pragma once

#include "src/kernels/cuda/delta_params.h"

namespace moray::cuda {

// Elements of a tile's row that holds `dim` values.
constexpr int delta_tile_width(int dim) {
  int width = 16;
  while (width < dim) width *= 2;
  return width;
}
// Columns of S a scan block works on: sixteen a warp.
constexpr int delta_scan_warps(int value_dim) {
  const int tiles = delta_tile_width(value_dim) / 16;
  return tiles < 4 ? tiles : 4;
}

// Rows of DeltaBlock::gates.
inline constexpr int kGateRows = 4;
inline constexpr int kLogDecayRow = 0;     // G
inline constexpr int kStateFactorRow = 1;  // beta e^G, 0 for pending tokens
inline constexpr int kDecayRow = 2;        // e^G
inline constexpr int kRemainingRow = 3;    // e^{G_C - G}

// Shared memory of a scan block: two of keys, values and gates, one of queries and two triangles.
constexpr int delta_scan_shared_bytes(int key_dim, int value_dim) {
  const int chunk = kDeltaChunkTokens;
  const int keys = chunk * delta_tile_width(key_dim) * 2;
  const int values = chunk * 16 * delta_scan_warps(value_dim) * 2;
  const int gates = kGateRows * chunk * 4, triangle = chunk * chunk * 2;
  return 2 * (keys + values + gates) + keys + 2 * triangle;
}

struct DeltaBlock {
  DeltaPrefillParams call;
  int first_chunk;
  int chunks;
  unsigned short* queries;  // F16 [chunks, key_heads, 64, key tile], times key_dim^-1/2
  unsigned short* keys;     // F16, the same
  unsigned short* inverse;  // F16 [chunks, value_heads, 64, 64]
  unsigned short* mix;      // F16, the same
  unsigned short* values;   // F16 [chunks, value_heads, 64, value tile]: beta v / unit
  float* value_units;       // [chunks, value_heads], powers of two
  float* gates;             // [chunks, value_heads, kGateRows, 64]
  float* last_keys;         // [key_heads, 64, key_dim] of the last chunk, not rounded
  float* mixed;             // [tokens, value_heads * value_dim]: O
};

}  // namespace moray::cuda
