// The chunked gated delta rule of one value head (formulas in ops.h).
//
// Invariant: each sum has one order, so that a token's result depends on its place in the sequence
// and not on the call: over key dimensions row after row of S, over the chunk's tokens j
// ascending, dot products of keys lane by lane and then in the tree of Lanes. Segments (the call's
// tokens within one chunk) share loads between tokens, nothing else.
#pragma once

#include <cstdint>

#include "src/kernels/cpu/generic/elementwise.h"
#include "src/kernels/cpu/generic/gdn_products.h"
#include "src/kernels/cpu/generic/math.h"
#include "src/kernels/cpu/kernels.h"

namespace moray::cpu {
namespace {

// One value head's scratch. Sums are laid out a token a row.
struct GdnScratch {
  float* from_state;  // [2 * kChunk, value_dim]: S^T k_i, S^T q_i of the segment's tokens
  float* dots;        // [2 * kChunk, kChunk]: k_i.k_j, q_i.k_j
  float* weighted;    // [kChunk, key_dim]: e^{G_C - G_j} k_j
  float* factors;     // [3, kChunk]: of the token at hand
};

inline GdnScratch carve_gdn_scratch(float* scratch, int64_t key_dim, int64_t value_dim) {
  GdnScratch s{};
  s.from_state = scratch;
  s.dots = s.from_state + 2 * kChunk * value_dim;
  s.weighted = s.dots + 2 * kChunk * kChunk;
  s.factors = s.weighted + kChunk * key_dim;
  return s;
}

// A chunk of one value head while a call works on it.
struct GdnChunk {
  const float* key_row[kChunk];  // where each token's key is, in the state or among the call's
  int64_t pending;               // tokens before the segment
  int64_t first;                 // the segment's first token in the call
  int64_t count;                 // the segment's tokens
};

// dots[2 i] [j] = k_i . k_j and dots[2 i + 1][j] = q_i . k_j for the segment's tokens i and all j
// up to the chunk place of i (some more are computed, none is used).
template <class L>
inline void compute_dots(const GdnHeadJob& job, const GdnChunk& chunk, float* dots) {
  constexpr int tokens = L::kTileTokens;
  for (int64_t i = 0; i < chunk.count; i += 2) {
    const int64_t next = i + 1 < chunk.count ? i + 1 : i;
    const float* row[4];
    for (int half = 0; half < 2; ++half) {
      const int64_t t = chunk.first + (half ? next : i);
      row[2 * half] = job.k + t * job.mixed_stride;
      row[2 * half + 1] = job.q + t * job.mixed_stride;
    }
    const int64_t end = chunk.pending + next + 1;
    for (int64_t j = 0; j < end; j += tokens) {
      const float* key[tokens];
      for (int n = 0; n < tokens; ++n) key[n] = chunk.key_row[j + n < end ? j + n : end - 1];
      float out[4 * tokens];
      dot_tile<L>(row, key, job.key_dim, out);
      for (int n = 0; n < tokens && j + n < end; ++n) {
        for (int m = 0; m < (next > i ? 4 : 2); ++m) {
          dots[(2 * i + m) * kChunk + j + n] = out[n * 4 + m];
        }
      }
    }
  }
}

// What the chunk's earlier writes add to a token's prediction and output, in columns from c on.
template <class L, int vectors>
inline void add_writes(const float* writes, int64_t value_dim, int64_t c, int64_t count,
                       const float* for_key, const float* for_query,
                       typename L::F (&predicted)[vectors], typename L::F (&output)[vectors]) {
  for (int64_t j = 0; j < count; ++j) {
    const auto key_factor = L::set(for_key[j]), query_factor = L::set(for_query[j]);
#pragma GCC unroll 8
    for (int n = 0; n < vectors; ++n) {
      const auto write = L::load(writes + j * value_dim + c + n * L::kWidth);
      predicted[n] = L::fma(key_factor, write, predicted[n]);
      output[n] = L::fma(query_factor, write, output[n]);
    }
  }
}

// The token's scalars: decay of S, beta, q_i . k_i; and factors of the writes before it.
struct GdnToken {
  float decay, beta, own;
  const float* for_key;
  const float* for_query;
  const float* state_key;    // S^T k_i
  const float* state_query;  // S^T q_i
  const float* v;
  const float* z;
  float* write;  // row `place` of the writes
  float* out;
  int64_t place;
};

// d_i and o_i of one group of columns, from the sums over the writes before token i.
template <class L>
inline typename L::F finish_columns(const GdnToken& token, int64_t c, int64_t count,
                                    typename L::F predicted, typename L::F output) {
  const auto decay = L::set(token.decay);
  predicted = L::fma(decay, load_some<L>(token.state_key + c, count), predicted);
  const auto write =
      L::mul(L::set(token.beta), L::sub(load_some<L>(token.v + c, count), predicted));
  store_some<L>(token.write + c, write, count);
  output = L::fma(decay, load_some<L>(token.state_query + c, count), output);
  return L::fma(L::set(token.own), write, output);
}

template <class L>
inline void run_columns(const GdnHeadJob& job, const GdnToken& token) {
  constexpr int vectors = L::kPairColumns;
  int64_t c = 0;
  for (; c + vectors * L::kWidth <= job.value_dim; c += vectors * L::kWidth) {
    typename L::F predicted[vectors], output[vectors];
    for (int n = 0; n < vectors; ++n) predicted[n] = output[n] = L::zero();
    add_writes<L, vectors>(job.writes, job.value_dim, c, token.place, token.for_key,
                           token.for_query, predicted, output);
    for (int n = 0; n < vectors; ++n) {
      const int64_t at = c + n * L::kWidth;
      L::store(token.out + at, finish_columns<L>(token, at, L::kWidth, predicted[n], output[n]));
    }
  }
  for_lanes<L>(job.value_dim - c, [&](int64_t i, int64_t count) {
    auto predicted = L::zero(), output = L::zero();
    for (int64_t j = 0; j < token.place; ++j) {
      const auto write = load_some<L>(job.writes + j * job.value_dim + c + i, count);
      predicted = L::fma(L::set(token.for_key[j]), write, predicted);
      output = L::fma(L::set(token.for_query[j]), write, output);
    }
    store_some<L>(token.out + c + i, finish_columns<L>(token, c + i, count, predicted, output),
                  count);
  });
}

// out = round( o / rms(o) * norm * silu(z) ), in place.
template <class L>
inline void gate_output(const GdnHeadJob& job, const GdnToken& token) {
  const int64_t dim = job.value_dim;
  const float mean = sum_of_squares<L>(token.out, dim) / static_cast<float>(dim);
  const auto factor = L::set(1.0f / __builtin_sqrtf(mean + job.eps));
  for_lanes<L>(dim, [&](int64_t i, int64_t count) {
    auto value = L::mul(load_some<L>(token.out + i, count), factor);
    value = L::mul(value, load_some<L>(job.norm_weight + i, count));
    value = L::mul(value, silu_of<L>(load_some<L>(token.z + i, count)));
    store_some<L>(token.out + i, job.round ? L::round_bf16(value) : value, count);
  });
}

// factors[j] = e^{G_i - G_j} for j < count.
template <class L>
inline void decay_factors(const float* log_decay, float last, int64_t count, float* factors) {
  for_lanes<L>(count, [&](int64_t j, int64_t n) {
    const auto difference = L::sub(L::set(last), load_some<L>(log_decay + j, n));
    store_some<L>(factors + j, exp_of<L>(difference), n);
  });
}

template <class L>
inline float exp_scalar(float x) {
  float lanes[L::kWidth];
  L::store(lanes, exp_of<L>(L::set(x)));
  return lanes[0];
}

template <class L>
inline void run_token(const GdnHeadJob& job, const GdnChunk& chunk, const GdnScratch& scratch,
                      int64_t i) {
  const int64_t t = chunk.first + i, place = chunk.pending + i;
  const float before = place ? job.log_decay[place - 1] : 0.0f;
  const float total = before + job.g[t * job.gate_stride];
  job.log_decay[place] = total;
  float* const decays = scratch.factors;
  float* const for_key = decays + kChunk;
  float* const for_query = for_key + kChunk;
  const float* const key_dots = scratch.dots + 2 * i * kChunk;
  const float* const query_dots = key_dots + kChunk;
  decay_factors<L>(job.log_decay, total, place, decays);
  for_lanes<L>(place, [&](int64_t j, int64_t n) {
    const auto decay = load_some<L>(decays + j, n);
    store_some<L>(for_key + j, L::mul(load_some<L>(key_dots + j, n), decay), n);
    store_some<L>(for_query + j, L::mul(load_some<L>(query_dots + j, n), decay), n);
  });
  const GdnToken token{.decay = exp_scalar<L>(total),
                       .beta = job.beta[t * job.gate_stride],
                       .own = query_dots[place],
                       .for_key = for_key,
                       .for_query = for_query,
                       .state_key = scratch.from_state + 2 * i * job.value_dim,
                       .state_query = scratch.from_state + (2 * i + 1) * job.value_dim,
                       .v = job.v + t * job.mixed_stride,
                       .z = job.z + t * job.out_stride,
                       .write = job.writes + place * job.value_dim,
                       .out = job.out + t * job.out_stride,
                       .place = place};
  run_columns<L>(job, token);
  gate_output<L>(job, token);
}

// Folds a full chunk into S.
template <class L>
inline void fold(const GdnHeadJob& job, const GdnChunk& chunk, const GdnScratch& scratch) {
  const float total = job.log_decay[kChunk - 1];
  decay_factors<L>(job.log_decay, total, kChunk, scratch.factors);
  for (int64_t j = 0; j < kChunk; ++j) {
    const auto factor = L::set(scratch.factors[j]);
    for_lanes<L>(job.key_dim, [&](int64_t i, int64_t count) {
      const auto key = load_some<L>(chunk.key_row[j] + i, count);
      store_some<L>(scratch.weighted + j * job.key_dim + i, L::mul(factor, key), count);
    });
  }
  const float decay = exp_scalar<L>(total);
  constexpr int64_t columns = L::kTileColumns * L::kWidth;
  int64_t c = 0;
  for (; c + columns <= job.value_dim; c += columns) {
    int64_t r = 0;
    for (; r + 4 <= job.key_dim; r += 4) fold_tile<L>(job, scratch.weighted, decay, r, c);
    for (; r < job.key_dim; ++r) {
      fold_rest<L>(job, scratch.weighted, decay, r, c, c + columns);
    }
  }
  for (int64_t r = 0; r < job.key_dim; ++r) {
    fold_rest<L>(job, scratch.weighted, decay, r, c, job.value_dim);
  }
}

template <class L>
inline void run_segment(const GdnHeadJob& job, const GdnChunk& chunk, const GdnScratch& scratch) {
  const float* row[2 * kChunk];
  float* out[2 * kChunk];
  for (int64_t i = 0; i < chunk.count; ++i) {
    row[2 * i] = job.k + (chunk.first + i) * job.mixed_stride;
    row[2 * i + 1] = job.q + (chunk.first + i) * job.mixed_stride;
    out[2 * i] = scratch.from_state + 2 * i * job.value_dim;
    out[2 * i + 1] = out[2 * i] + job.value_dim;
  }
  multiply_state<L>(job.s, job.key_dim, job.value_dim, 2 * chunk.count, row, out);
  compute_dots<L>(job, chunk, scratch.dots);
  for (int64_t i = 0; i < chunk.count; ++i) run_token<L>(job, chunk, scratch, i);
}

template <class L>
void gdn_head(const GdnHeadJob& job) {
  const GdnScratch scratch = carve_gdn_scratch(job.scratch, job.key_dim, job.value_dim);
  if (job.position == 0) {
    for (int64_t i = 0; i < job.key_dim * job.value_dim; ++i) job.s[i] = 0;
  }
  GdnChunk chunk;
  for (int64_t j = 0; j < kChunk; ++j) chunk.key_row[j] = job.keys + j * job.key_dim;
  for (int64_t done = 0; done < job.tokens; done += chunk.count) {
    const int64_t position = job.position + done;
    chunk.pending = position % kChunk;
    if (chunk.pending == 0 && position > 0) fold<L>(job, chunk, scratch);
    chunk.first = done;
    const int64_t room = kChunk - chunk.pending, left = job.tokens - done;
    chunk.count = room < left ? room : left;
    for (int64_t i = 0; i < chunk.count; ++i) {
      chunk.key_row[chunk.pending + i] = job.k + (done + i) * job.mixed_stride;
    }
    run_segment<L>(job, chunk, scratch);
  }
}

}  // namespace
}  // namespace moray::cpu
