// The pieces of attention beside the products q k^T (those are linear's): head norm and rotation,
// the softmax of a range of keys, the sum p V, the merging of ranges.
//
// Invariant: a query's sums run over keys in ascending order whatever other queries share the
// loads, and no key beyond a query's end is touched for it, so that a damaged later token cannot
// reach back.
#pragma once

#include <cstdint>
#include <cstring>

#include "src/kernels/cpu/generic/elementwise.h"
#include "src/kernels/cpu/generic/math.h"
#include "src/kernels/cpu/kernels.h"

namespace moray::cpu {
namespace {

template <class L>
void prepare_head(const HeadJob& job) {
  rms_norm_rows<L>({.x = job.x,
                    .weight = job.weight,
                    .rows = 1,
                    .dim = job.dim,
                    .eps = job.eps,
                    .zero_centred = job.zero_centred,
                    .round = false,
                    .out = job.out});
  const int64_t half = job.rotary_dim / 2;
  for_lanes<L>(half, [&](int64_t i, int64_t count) {
    const auto cosine = load_some<L>(job.cosine + i, count);
    const auto sine = load_some<L>(job.sine + i, count);
    const auto first = load_some<L>(job.out + i, count);
    const auto second = load_some<L>(job.out + half + i, count);
    store_some<L>(job.out + i, L::fnma(second, sine, L::mul(first, cosine)), count);
    store_some<L>(job.out + half + i, L::fma(first, sine, L::mul(second, cosine)), count);
  });
  if (!job.round) return;
  for_lanes<L>(job.dim, [&](int64_t i, int64_t count) {
    store_some<L>(job.out + i, L::round_bf16(load_some<L>(job.out + i, count)), count);
  });
}

template <class L>
void softmax_part(float* scores, int64_t count, float scale, float* largest, float* total) {
  const auto factor = L::set(scale);
  auto most = L::set(-__builtin_inff());
  for_lanes<L>(count, [&](int64_t i, int64_t n) {
    // Lanes beyond the end repeat the first score of the group.
    const auto score = n == L::kWidth ? L::load(scores + i) : L::set(scores[i]);
    most = L::max(most, L::mul(score, factor));
    for (int64_t j = 1; n < L::kWidth && j < n; ++j) {
      most = L::max(most, L::mul(L::set(scores[i + j]), factor));
    }
  });
  *largest = L::largest(most);
  const auto top = L::set(*largest);
  auto sum = L::zero();
  for_lanes<L>(count, [&](int64_t i, int64_t n) {
    const auto score = L::mul(load_some<L>(scores + i, n), factor);
    const auto p = L::keep_first(exp_of<L>(L::sub(score, top)), n);
    store_some<L>(scores + i, p, n);
    sum = L::add(sum, p);
  });
  *total = L::sum(sum);
}

// `count` values of one vector, from BF16 or FP32.
template <class L, bool bf16>
inline typename L::F load_value(const char* from, int64_t count) {
  char copy[L::kWidth * 4] = {};
  if (count < L::kWidth) {
    std::memcpy(copy, from, static_cast<size_t>(count * (bf16 ? 2 : 4)));
    from = copy;
  }
  if constexpr (bf16) {
    return L::load_bf16(from);
  } else {
    return L::load(reinterpret_cast<const float*>(from));
  }
}

// With few queries, rows are asked for this many rows before their use: 8192 positions of nano took
// 837 us without, 455, 452, 459 us with 16, 32, 64 rows (bench_kernels attention, one thread, Zen
// 5).
constexpr int64_t kPrefetchRows = 16;

// Where a panel of value columns is read: row j of the range at rows + j * row_bytes.
struct Panel {
  const char* rows;
  int64_t row_bytes;
};

// Keys [begin, end) for `queries` queries from `query` on, columns [c, c + vectors * kWidth).
template <class L, bool bf16, int queries, int vectors>
inline void add_values_tile(const ValuesJob& job, const Panel& panel, int64_t query, int64_t begin,
                            int64_t end, int64_t c) {
  constexpr int64_t size = bf16 ? 2 : 4;
  typename L::F sum[queries][vectors];
#pragma GCC unroll 4
  for (int q = 0; q < queries; ++q) {
#pragma GCC unroll 4
    for (int n = 0; n < vectors; ++n) {
      sum[q][n] = L::load(job.sums + (query + q) * job.sum_stride + c + n * L::kWidth);
    }
  }
  const char* row = panel.rows + begin * panel.row_bytes;
  const float* p = job.p + query * job.p_stride;
  for (int64_t j = begin; j < end; ++j, row += panel.row_bytes) {
    if constexpr (bf16) {  // a widened panel is in the first cache
      __builtin_prefetch(row + kPrefetchRows * panel.row_bytes);
      __builtin_prefetch(row + kPrefetchRows * panel.row_bytes + 64);
    }
    typename L::F value[vectors];
#pragma GCC unroll 4
    for (int n = 0; n < vectors; ++n) {
      value[n] = load_value<L, bf16>(row + n * L::kWidth * size, L::kWidth);
    }
#pragma GCC unroll 4
    for (int q = 0; q < queries; ++q) {
      const auto factor = L::set(p[q * job.p_stride + j]);
#pragma GCC unroll 4
      for (int n = 0; n < vectors; ++n) sum[q][n] = L::fma(factor, value[n], sum[q][n]);
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < queries; ++q) {
#pragma GCC unroll 4
    for (int n = 0; n < vectors; ++n) {
      L::store(job.sums + (query + q) * job.sum_stride + c + n * L::kWidth, sum[q][n]);
    }
  }
}

// The columns no tile covers.
template <class L, bool bf16>
inline void add_values_rest(const ValuesJob& job, int64_t query, int64_t begin, int64_t end,
                            int64_t c) {
  constexpr int64_t size = bf16 ? 2 : 4;
  for_lanes<L>(job.dim - c, [&](int64_t i, int64_t count) {
    float* const at = job.sums + query * job.sum_stride + c + i;
    auto sum = load_some<L>(at, count);
    for (int64_t j = begin; j < end; ++j) {
      const auto* row = static_cast<const char*>(job.values) + (j * job.dim + c + i) * size;
      sum = L::fma(L::set(job.p[query * job.p_stride + j]), load_value<L, bf16>(row, count), sum);
    }
    store_some<L>(at, sum, count);
  });
}

inline int64_t clamp_end(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// Four queries together up to the first one's end, the rest of each alone.
template <class L, bool bf16>
inline void add_values_block(const ValuesJob& job, const Panel& panel, int64_t begin, int64_t end,
                             int64_t c) {
  constexpr int vectors = L::kTileColumns;
  for (int64_t query = 0; query < job.queries; query += 4) {
    int64_t common = begin;
    const int64_t count = job.queries - query < 4 ? job.queries - query : 4;
    if (count == 4) {
      common = end;
      for (int q = 0; q < 4; ++q) common = clamp_end(job.ends[query + q], begin, common);
      if (common > begin) add_values_tile<L, bf16, 4, vectors>(job, panel, query, begin, common, c);
    } else if (count >= 2) {
      common = clamp_end(job.ends[query], begin, end);
      common = clamp_end(job.ends[query + 1], begin, common);
      if (common > begin) add_values_tile<L, bf16, 2, vectors>(job, panel, query, begin, common, c);
    }
    for (int64_t q = 0; q < count; ++q) {
      const int64_t from = count < 4 && q >= 2 ? begin : common;
      const int64_t to = clamp_end(job.ends[query + q], from, end);
      if (to > from) add_values_tile<L, bf16, 1, vectors>(job, panel, query + q, from, to, c);
    }
  }
}

// Keys a panel of columns is swept over at a time, so that it stays in the first cache while all
// queries use it: 128 rows of 128 bytes.
constexpr int64_t kValueRows = 128;
// With few queries memory is the limit: whole rows are read before the next ones.
constexpr int64_t kValueRowsDecode = 16;

// Queries that make it worth widening a panel of BF16 values once instead of in each tile.
constexpr int64_t kWidenQueries = 16;

template <class L, bool bf16>
inline void add_values_panel(const ValuesJob& job, int64_t begin, int64_t end, int64_t c) {
  constexpr int64_t size = bf16 ? 2 : 4, columns = L::kTileColumns * L::kWidth;
  const char* const rows = static_cast<const char*>(job.values) + c * size;
  if (!bf16 || job.queries < kWidenQueries) {
    add_values_block<L, bf16>(job, {rows, job.dim * size}, begin, end, c);
    return;
  }
  alignas(64) float wide[kValueRows * columns];
  for (int64_t j = begin; j < end; ++j) {
    for (int64_t i = 0; i < columns; i += L::kWidth) {
      L::store(wide + (j - begin) * columns + i, L::load_bf16(rows + (j * job.dim + i) * size));
    }
  }
  constexpr int64_t row_bytes = columns * int64_t{sizeof(float)};
  const char* const first = reinterpret_cast<const char*>(wide) - begin * row_bytes;
  add_values_block<L, false>(job, {first, row_bytes}, begin, end, c);
}

template <class L, bool bf16>
inline void add_values_of(const ValuesJob& job) {
  int64_t last = 0;
  for (int64_t q = 0; q < job.queries; ++q) last = job.ends[q] > last ? job.ends[q] : last;
  constexpr int64_t columns = L::kTileColumns * L::kWidth;
  const int64_t step = job.queries < kWidenQueries ? kValueRowsDecode : kValueRows;
  for (int64_t begin = 0; begin < last; begin += step) {
    const int64_t end = begin + step < last ? begin + step : last;
    int64_t c = 0;
    for (; c + columns <= job.dim; c += columns) add_values_panel<L, bf16>(job, begin, end, c);
    if (c == job.dim) continue;
    for (int64_t q = 0; q < job.queries; ++q) {
      add_values_rest<L, bf16>(job, q, begin, clamp_end(job.ends[q], begin, end), c);
    }
  }
}

template <class L>
void add_values(const ValuesJob& job) {
  if (job.bf16) {
    add_values_of<L, true>(job);
  } else {
    add_values_of<L, false>(job);
  }
}

template <class L>
void merge_sums(float* sums, float a, const float* part, float b, int64_t count) {
  for_lanes<L>(count, [&](int64_t i, int64_t n) {
    const auto old = L::mul(load_some<L>(sums + i, n), L::set(a));
    store_some<L>(sums + i, L::fma(load_some<L>(part + i, n), L::set(b), old), n);
  });
}

template <class L>
void finish_head(const float* sums, float total, const float* gate, int64_t dim, bool round,
                 float* out) {
  const auto divisor = L::set(total);
  for_lanes<L>(dim, [&](int64_t i, int64_t n) {
    auto value = L::div(load_some<L>(sums + i, n), divisor);
    if (gate) value = L::mul(value, sigmoid_of<L>(load_some<L>(gate + i, n)));
    store_some<L>(out + i, round ? L::round_bf16(value) : value, n);
  });
}

template <class L>
inline void fill_attention(Kernels& table) {
  table.prepare_head = prepare_head<L>;
  table.softmax_part = softmax_part<L>;
  table.add_values = add_values<L>;
  table.merge_sums = merge_sums<L>;
  table.finish_head = finish_head<L>;
}

}  // namespace
}  // namespace moray::cpu
