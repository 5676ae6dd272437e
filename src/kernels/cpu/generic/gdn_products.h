// The products of the delta rule: keys and queries with S, with each other, and writes into S.
//
// Invariant: each output's order of summation is the same in every tile: rows r of S ascending, the
// chunk's tokens j ascending, dot products lane by lane and then in the tree of Lanes.
#pragma once

#include <cstdint>

#include "src/kernels/cpu/generic/math.h"
#include "src/kernels/cpu/kernels.h"

namespace moray::cpu {
namespace {

constexpr int64_t kChunk = 64;

// out[m][c] = sum_r row[m][r] S[r][c] for `rows` rows and columns of `vectors` vectors from c on.
template <class L, int rows, int vectors>
inline void multiply_state_tile(const float* s, int64_t key_dim, int64_t value_dim, int64_t c,
                                const float* const* row, float* const* out) {
  typename L::F sum[rows][vectors];
#pragma GCC unroll 8
  for (int m = 0; m < rows; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) sum[m][n] = L::zero();
  }
  for (int64_t r = 0; r < key_dim; ++r) {
    typename L::F value[vectors];
#pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) value[n] = L::load(s + r * value_dim + c + n * L::kWidth);
#pragma GCC unroll 8
    for (int m = 0; m < rows; ++m) {
      const auto factor = L::set(row[m][r]);
#pragma GCC unroll 8
      for (int n = 0; n < vectors; ++n) sum[m][n] = L::fma(factor, value[n], sum[m][n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < rows; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) L::store(out[m] + c + n * L::kWidth, sum[m][n]);
  }
}

// The last columns, fewer than a tile's: a vector or part of one at a time.
template <class L>
inline void multiply_state_rest(const float* s, int64_t key_dim, int64_t value_dim, int64_t c,
                                const float* row, float* out) {
  for_lanes<L>(value_dim - c, [&](int64_t i, int64_t count) {
    auto sum = L::zero();
    for (int64_t r = 0; r < key_dim; ++r) {
      const auto value = load_some<L>(s + r * value_dim + c + i, count);
      sum = L::fma(L::set(row[r]), value, sum);
    }
    store_some<L>(out + c + i, sum, count);
  });
}

// All of row[0..count): four at a time where there are so many, else the two of a single token.
template <class L>
inline void multiply_state(const float* s, int64_t key_dim, int64_t value_dim, int64_t count,
                           const float* const* row, float* const* out) {
  constexpr int64_t wide = L::kPairColumns * L::kWidth, narrow = L::kTileColumns * L::kWidth;
  int64_t c = 0;
  if (count <= 2) {
    for (; c + wide <= value_dim; c += wide) {
      multiply_state_tile<L, 2, L::kPairColumns>(s, key_dim, value_dim, c, row, out);
    }
  }
  for (; c + narrow <= value_dim; c += narrow) {
    int64_t m = 0;
    for (; m + 4 <= count; m += 4) {
      multiply_state_tile<L, 4, L::kTileColumns>(s, key_dim, value_dim, c, row + m, out + m);
    }
    for (; m + 2 <= count; m += 2) {
      multiply_state_tile<L, 2, L::kTileColumns>(s, key_dim, value_dim, c, row + m, out + m);
    }
  }
  for (int64_t m = 0; m < count; ++m) {
    multiply_state_rest<L>(s, key_dim, value_dim, c, row[m], out[m]);
  }
}

// out[j * 4 + m] = row[m] . key[j] for four rows and kTileTokens keys.
template <class L>
inline void dot_tile(const float* const (&row)[4], const float* const (&key)[L::kTileTokens],
                     int64_t dim, float* out) {
  constexpr int tokens = L::kTileTokens;
  typename L::F sum[4][tokens];
  for (int m = 0; m < 4; ++m) {
    for (int j = 0; j < tokens; ++j) sum[m][j] = L::zero();
  }
  for_lanes<L>(dim, [&](int64_t i, int64_t count) {
    typename L::F value[tokens];
#pragma GCC unroll 4
    for (int j = 0; j < tokens; ++j) value[j] = load_some<L>(key[j] + i, count);
#pragma GCC unroll 4
    for (int m = 0; m < 4; ++m) {
      const auto factor = load_some<L>(row[m] + i, count);
#pragma GCC unroll 4
      for (int j = 0; j < tokens; ++j) sum[m][j] = L::fma(factor, value[j], sum[m][j]);
    }
  });
  L::sum_tile(sum, out);
}

// S rows r..r+3, columns of kTileColumns vectors: e^{G_C} S + sum_j weighted[j][r] writes[j].
template <class L>
inline void fold_tile(const GdnHeadJob& job, const float* weighted, float decay, int64_t r,
                      int64_t c) {
  constexpr int vectors = L::kTileColumns;
  const int64_t dim = job.value_dim;
  typename L::F sum[4][vectors];
#pragma GCC unroll 4
  for (int m = 0; m < 4; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < vectors; ++n) {
      sum[m][n] = L::mul(L::set(decay), L::load(job.s + (r + m) * dim + c + n * L::kWidth));
    }
  }
  for (int64_t j = 0; j < kChunk; ++j) {
    typename L::F write[vectors];
#pragma GCC unroll 4
    for (int n = 0; n < vectors; ++n) write[n] = L::load(job.writes + j * dim + c + n * L::kWidth);
#pragma GCC unroll 4
    for (int m = 0; m < 4; ++m) {
      const auto factor = L::set(weighted[j * job.key_dim + r + m]);
#pragma GCC unroll 4
      for (int n = 0; n < vectors; ++n) sum[m][n] = L::fma(factor, write[n], sum[m][n]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < 4; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < vectors; ++n) {
      L::store(job.s + (r + m) * dim + c + n * L::kWidth, sum[m][n]);
    }
  }
}

// Row r, columns [c, c_end), where no tile fits.
template <class L>
inline void fold_rest(const GdnHeadJob& job, const float* weighted, float decay, int64_t r,
                      int64_t c, int64_t c_end) {
  for_lanes<L>(c_end - c, [&](int64_t i, int64_t count) {
    float* const at = job.s + r * job.value_dim + c + i;
    auto sum = L::mul(L::set(decay), load_some<L>(at, count));
    for (int64_t j = 0; j < kChunk; ++j) {
      const auto write = load_some<L>(job.writes + j * job.value_dim + c + i, count);
      sum = L::fma(L::set(weighted[j * job.key_dim + r]), write, sum);
    }
    store_some<L>(at, sum, count);
  });
}

}  // namespace
}  // namespace moray::cpu
