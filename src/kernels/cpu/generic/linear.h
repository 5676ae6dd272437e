// Matrix rows times tokens: the loops of linear and moe, over an engine and a weight reader.
//
// Invariant: one order of summation per output, whatever the tile. A slice of 128 weights is
// summed lane by lane into `part` (step after step), part times the block's scale is added to
// `sum` (slice after slice), and sum's lanes are added in the tree of Lanes. Tiles differ only in
// how many outputs they hold at a time.
//
// Engines and readers are in linear_readers.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "src/kernels/cpu/generic/linear_readers.h"
#include "src/kernels/cpu/kernels.h"

namespace moray::cpu {
namespace {

// What one tile multiplies: `rows` consecutive rows from `row0` (row_bytes apart), `tokens` rows x.
template <class E>
struct Tile {
  const char* row0;
  int64_t row_bytes;
  const float* scales;  // of these rows' blocks, or null
  int64_t k;
  int64_t ahead;  // bytes from a weight to what is prefetched when it is read
};

// part[r][t] = lane sums of one slice.
template <class E, class R, int rows, int tokens>
inline void multiply_slice(const char* const (&row)[rows], R (&reader)[rows], int64_t ahead,
                           const typename E::X* const (&x)[tokens], int64_t x_offset,
                           typename E::F (&part)[rows][tokens]) {
#pragma GCC unroll 16
  for (int k = 0; k < kSlice; k += 2 * E::kStep) {
    typename E::Wide x0[tokens], x1[tokens];
#pragma GCC unroll 4
    for (int t = 0; t < tokens; ++t) {
      x0[t] = E::load(x[t] + x_offset + k);
      x1[t] = E::load(x[t] + x_offset + k + E::kStep);
      // Kept in registers for all rows; GCC would load them again for each.
      asm("" : "+v"(x0[t]), "+v"(x1[t]));
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      typename E::Wide a, b;
      reader[r].load(row[r] + k * R::kBytes, a, b);
      if constexpr (R::kPrefetch) {
#pragma GCC unroll 8
        for (int line = 0; line < 2 * E::kStep * R::kBytes; line += 64) {
          __builtin_prefetch(row[r] + ahead + k * R::kBytes + line);
        }
      }
#pragma GCC unroll 4
      for (int t = 0; t < tokens; ++t) {
        part[r][t] = E::mad(part[r][t], a, x0[t]);
        part[r][t] = E::mad(part[r][t], b, x1[t]);
      }
    }
  }
}

template <class L, class E, class R, int rows, int tokens>
inline void add_slice(const Tile<E>& tile, int64_t slice, const char* const (&row)[rows],
                      R (&reader)[rows], const typename E::X* const (&x)[tokens],
                      typename E::F (&sum)[rows][tokens]) {
  typename E::F part[rows][tokens];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < tokens; ++t) part[r][t] = L::zero();
  }
  multiply_slice<E, R, rows, tokens>(row, reader, tile.ahead, x, slice * kSlice, part);
  const typename E::F scale = L::set(tile.scales ? tile.scales[slice] * R::kScale : R::kScale);
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < tokens; ++t) sum[r][t] = L::fma(part[r][t], scale, sum[r][t]);
  }
}

// out[t * rows + r] for a tile of rows in {1, 4}.
template <class L, class E, class R, int rows, int tokens>
[[gnu::always_inline]] inline void multiply_tile(const Tile<E>& tile,
                                                 const typename E::X* const (&x)[tokens],
                                                 float* out) {
  typename E::F sum[rows][tokens];
  R reader[rows];
  const char* row[rows];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    row[r] = tile.row0 + r * tile.row_bytes;
#pragma GCC unroll 4
    for (int t = 0; t < tokens; ++t) sum[r][t] = L::zero();
  }
  const int64_t slices = tile.k / kSlice;
  for (int64_t slice = 0; slice < slices; ++slice) {
    add_slice<L, E, R, rows, tokens>(tile, slice, row, reader, x, sum);
    for (int r = 0; r < rows; ++r) row[r] += kSlice * R::kBytes;
  }
  if (const int64_t rest = tile.k % kSlice) {  // a copy padded with zeros; x is padded as well
    alignas(64) char copy[rows][kSlice * R::kBytes];
    std::memset(copy, 0, sizeof(copy));
    for (int r = 0; r < rows; ++r) {
      std::memcpy(copy[r], row[r], static_cast<size_t>(rest * R::kBytes));
      row[r] = copy[r];
    }
    add_slice<L, E, R, rows, tokens>(tile, slices, row, reader, x, sum);
  }
  if constexpr (rows == 4 && tokens == L::kTileTokens) {
    L::sum_tile(sum, out);
  } else if constexpr (rows == 4) {
    for (int t = 0; t < tokens; ++t) {
      const typename E::F column[4] = {sum[0][t], sum[1][t], sum[2][t], sum[3][t]};
      L::sum_rows4(column, out + t * 4);
    }
  } else {
    for (int t = 0; t < tokens; ++t) out[t] = L::sum(sum[0][t]);
  }
  for (int r = 0; r < rows; ++r) {
    if (!reader[r].saw_nan()) continue;
    for (int t = 0; t < tokens; ++t) out[t * rows + r] = __builtin_nanf("");
  }
}

// Stores a tile's sums, after the addition and rounding the job asks for.
template <class L, int rows, int tokens>
[[gnu::always_inline]] inline void store_outputs(const LinearJob& job, const float* sums,
                                                 int64_t row, int64_t token) {
  for (int t = 0; t < tokens; ++t) {
    float* y = job.y + (token + t) * job.y_stride + (row - job.row_begin);
    if (!job.add) {
      std::memcpy(y, sums + t * rows, static_cast<size_t>(rows) * sizeof(float));
      continue;
    }
    typename L::F value = L::add(L::load_first(y, rows), L::load_first(sums + t * rows, rows));
    if (job.round_sum) value = L::round_bf16(value);
    L::store_first(y, value, rows);
  }
}

template <class E, int tokens>
inline void find_rows(const LinearJob& job, int64_t token, const typename E::X* (&x)[tokens]) {
  for (int t = 0; t < tokens; ++t) {
    const int64_t from = job.x_rows ? job.x_rows[token + t] : token + t;
    x[t] = static_cast<const typename E::X*>(job.x) + from * job.x_stride;
  }
}

template <class L, class E, class R, int rows, int tokens>
[[gnu::always_inline]] inline void run_tile(const LinearJob& job, const Tile<E>& tile, int64_t row,
                                            int64_t token) {
  const typename E::X* x[tokens];
  find_rows<E, tokens>(job, token, x);
  float sums[rows * tokens];
  multiply_tile<L, E, R, rows, tokens>(tile, x, sums);
  store_outputs<L, rows, tokens>(job, sums, row, token);
}

// `rows` rows times all tokens of [token, job.tokens) in tiles as wide as possible.
template <class L, class E, class R, int rows>
inline void run_tokens(const LinearJob& job, const Tile<E>& tile, int64_t row, int64_t token,
                       int64_t token_end) {
  constexpr int most = L::kTileTokens;
  for (; token + most <= token_end; token += most) {
    run_tile<L, E, R, rows, most>(job, tile, row, token);
  }
  const int64_t rest = token_end - token;
  if (rest == 1) run_tile<L, E, R, rows, 1>(job, tile, row, token);
  if constexpr (most > 2) {
    if (rest == 2) run_tile<L, E, R, rows, 2>(job, tile, row, token);
    if (rest == 3) run_tile<L, E, R, rows, 3>(job, tile, row, token);
  }
}

// Weights are asked for this many bytes before their use. The hardware's prefetchers lose the four
// row streams of a tile at each matrix and page border: 0, 1024, 2048, 4096, 8192 bytes gave 64,
// 35, 31, 22, 24 us for the nano experts of a token, read from memory by one thread, and 1.79,
// 1.52, 1.41, 1.36, 1.12 ms for those of the 35B model (bench_kernels moe, Zen 5).
constexpr int64_t kPrefetchBytes = 8192;

// Tiles of 8 rows for a single token lost to 4: nano's projection 9.5 us against 8.7, the BF16 head
// 64 against 43 (eight streams of rows; bench_kernels linear, Zen 5).
//
// Rows [row, row_end) from `tile` on, all tokens, weights read as R stores them.
template <class L, class E, class R>
inline void run_rows(const LinearJob& job, Tile<E> tile, int64_t row, int64_t row_end,
                     int64_t token, int64_t token_end) {
  for (; row + 4 <= row_end; row += 4, tile.row0 += 4 * tile.row_bytes) {
    run_tokens<L, E, R, 4>(job, tile, row, token, token_end);
  }
  for (; row < row_end; ++row, tile.row0 += tile.row_bytes) {
    run_tokens<L, E, R, 1>(job, tile, row, token, token_end);
  }
}

inline const float* scales_of(const LinearJob& job, int64_t row) {
  return job.scales ? job.scales + row / kSlice * job.scale_cols : nullptr;
}

// End of the kLinearTileRows rows, on the absolute grid, that `row` is in; they share their scales.
inline int64_t block_end(const LinearJob& job, int64_t row) {
  static_assert(kSlice % kLinearTileRows == 0);
  const int64_t end = (row / kLinearTileRows + 1) * kLinearTileRows;
  return end < job.row_end ? end : job.row_end;
}

// `rows` of a tile times all tokens, kTileTokens at a time: these rows stay in the first cache.
template <class L, class E, class R>
inline void run_block(const LinearJob& job, const Tile<E>& tile, int64_t row, int64_t row_end) {
  for (int64_t token = 0; token < job.tokens; token += L::kTileTokens) {
    const int64_t end = token + L::kTileTokens;
    run_rows<L, E, R>(job, tile, row, row_end, token, end < job.tokens ? end : job.tokens);
  }
}

// Every weight is widened in registers for each group of kTileTokens tokens: right for few tokens.
template <class L, class E, class R>
void linear_direct(const LinearJob& job) {
  const int64_t row_bytes = job.k * R::kBytes;
  for (int64_t row = job.row_begin; row < job.row_end;) {
    const int64_t end = block_end(job, row);
    const char* const start = static_cast<const char*>(job.weight) + row * row_bytes;
    // Beyond the job's rows stands what the worker reads next.
    const char* const job_end = static_cast<const char*>(job.weight) + job.row_end * row_bytes;
    const bool leaves = job.next && start + kPrefetchBytes >= job_end;
    const int64_t skip = leaves ? static_cast<const char*>(job.next) - job_end : 0;
    const Tile<E> tile{start, row_bytes, scales_of(job, row), job.k, kPrefetchBytes + skip};
    run_block<L, E, R>(job, tile, row, end);
    row = end;
  }
}

// Rows are widened once into scratch, kLinearTileRows at a time, and reused by all tokens.
template <class L, class E, class R>
void linear_widened(const LinearJob& job, typename E::Wide nan) {
  const int64_t padded = (job.k + kSlice - 1) / kSlice * kSlice;
  auto* wide = static_cast<typename E::X*>(job.scratch);
  for (int64_t row = job.row_begin; row < job.row_end;) {
    const int64_t end = block_end(job, row);
    for (int64_t r = row; r < end; ++r) {
      widen_row<E, R>(static_cast<const char*>(job.weight) + r * job.k * R::kBytes, job.k,
                      wide + (r - row) * padded, nan);
    }
    const Tile<E> tile{reinterpret_cast<const char*>(wide), padded * int64_t{sizeof(typename E::X)},
                       scales_of(job, row), padded, 0};
    run_block<L, E, ReadWidened<E, R>>(job, tile, row, end);
    row = end;
  }
}

// Above this many tokens one pass over a widened copy beats widening again a tile of tokens
// (bench_kernels linear, Zen 5: equal at 8).
constexpr int64_t kDirectTokens = 8;

template <class L, class E, class R>
void linear_rows(const LinearJob& job, typename E::Wide nan) {
  if (job.tokens <= kDirectTokens) {
    linear_direct<L, E, R>(job);
  } else {
    linear_widened<L, E, R>(job, nan);
  }
}

}  // namespace
}  // namespace moray::cpu
