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
// Columns of S a scan block works on, sixteen a warp. Two warps: all columns of 32 heads then fill
// 128 multiprocessors, and the four schedulers of one have no more warps to share the tiles with.
constexpr int delta_scan_columns(int value_dim) {
  return delta_tile_width(value_dim) < 32 ? 16 : 32;
}

// Rows of DeltaBlock::gates.
inline constexpr int kGateRows = 4;
inline constexpr int kLogDecayRow = 0;     // G
inline constexpr int kStateFactorRow = 1;  // beta e^G, 0 for pending tokens
inline constexpr int kDecayRow = 2;        // e^G
inline constexpr int kRemainingRow = 3;    // e^{G_C - G}

// Shared memory of a scan block: two stages of keys, a triangle, values and gates.
constexpr int delta_scan_shared_bytes(int key_dim, int value_dim) {
  const int chunk = kDeltaChunkTokens;
  return 2 * (2 * chunk * (delta_tile_width(key_dim) + chunk + delta_scan_columns(value_dim)) +
              4 * kGateRows * chunk);
}

// Tiles are in the order of tile_offset (device/tile.cuh), so that copies to shared memory are
// straight. Operands are what the lanes of a warp hold of sixteen columns, 16 bytes a lane and step
// of 16 along the sum (device/mma.cuh).
struct DeltaBlock {
  DeltaPrefillParams call;
  int first_chunk;
  int chunks;
  unsigned short* queries;  // F16 [chunks, key_heads, 64, key tile], times key_dim^-1/2
  unsigned short* keys;     // F16, the same
  unsigned short* inverse;  // F16 [chunks, value_heads, 64, 64]
  unsigned short* mix;      // F16, the same
  unsigned short* values;   // F16 [chunks, value_heads, slices, 64, scan columns]: beta v / unit
  float* value_units;       // [chunks, value_heads], powers of two
  float* gates;             // [chunks, value_heads, kGateRows, 64]
  float* last_keys;         // [key_heads, 64, key_dim] of the last chunk, not rounded
  // By the scan, of every chunk and sixteen columns of a value head:
  unsigned short* states;  // F16 operands of S^T at its start, key tile / 16 steps
  unsigned short* writes;  // F16 operands of D^T, 4 steps
  float* units;            // [.., 2] of the two, powers of two
};

}  // namespace moray::cuda
