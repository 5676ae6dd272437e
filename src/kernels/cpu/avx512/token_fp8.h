// One token times an FP8 matrix: what decoding spends most of its time in.
//
// Invariant: bit-equal to the loops of generic/linear.h, whose order of summation this keeps; what
// differs is that eight rows share the input's loads and the addition of lanes, and that tiles of
// normal numbers (MatrixView::normal_tiles) are widened by shifts: 5.5 cycles a 64 codes of a
// matrix with 256 columns, 8.7 where tiles are unknown (from the third cache, Zen 4).
#pragma once

#include <algorithm>

#include "src/kernels/cpu/avx512/fp8_pairs.h"
#include "src/kernels/cpu/avx512/lanes.h"
#include "src/kernels/cpu/kernels.h"
#include "src/tensor/view.h"

namespace moray::cpu {
namespace {

constexpr int64_t kTokenRows = 8;  // rows of a step
// Weights are asked for this many bytes before their use, as in generic/linear.h.
constexpr int64_t kTokenPrefetchBytes = 8192;

// part[r] = lane sums of 128 products of row r; rows are row_bytes apart.
template <void (*load)(const char*, __m512i&, __m512i&)>
[[gnu::always_inline]] inline void multiply_eight(const char* row0, int64_t row_bytes,
                                                  int64_t ahead, const uint16_t* x,
                                                  __m512 (&part)[kTokenRows]) {
#pragma GCC unroll 2
  for (int k = 0; k < kScaleBlock; k += 64) {
    __m512i x0 = _mm512_loadu_si512(x + k), x1 = _mm512_loadu_si512(x + k + 32);
    asm("" : "+v"(x0), "+v"(x1));  // kept in registers for all rows
#pragma GCC unroll 8
    for (int r = 0; r < kTokenRows; ++r) {
      const char* const from = row0 + r * row_bytes + k;
      __m512i a, b;
      load(from, a, b);
      __builtin_prefetch(from + ahead);
      part[r] = _mm512_dpbf16_ps(k == 0 ? _mm512_setzero_ps() : part[r], (__m512bh)a, (__m512bh)x0);
      part[r] = _mm512_dpbf16_ps(part[r], (__m512bh)b, (__m512bh)x1);
    }
  }
}

// Any codes. Rare, and out of line so that its tables do not take the usual case's registers.
[[gnu::noinline]] void multiply_eight_by_table(const char* row0, int64_t row_bytes, int64_t ahead,
                                               const uint16_t* x, __m512 (&part)[kTokenRows]) {
  multiply_eight<load_by_table>(row0, row_bytes, ahead, x, part);
}

// y of eight rows, after the addition and rounding the job asks for.
inline void store_eight(const LinearJob& job, const __m512 (&sum)[kTokenRows], float* y) {
  Lanes::F value = Lanes::sum_rows8(sum);
  if (job.add) value = Lanes::add(Lanes::load_first(y, kTokenRows), value);
  if (job.add && job.round_sum) value = Lanes::round_bf16(value);
  Lanes::store_first(y, value, kTokenRows);
}

// Whole steps of eight rows, whole slices of 128 columns.
inline bool multiplies_one_token(const LinearJob& job) {
  return job.tokens == 1 && job.k % kScaleBlock == 0 && job.row_begin % kTokenRows == 0 &&
         job.row_end % kTokenRows == 0;
}

template <bool knows_normal_tiles>
void multiply_one_token(const LinearJob& job) {
  static_assert(kTokenRows == 2 * kNormalTileRows);
  const int64_t k = job.k, slices = k / kScaleBlock;
  const auto* const x =
      static_cast<const uint16_t*>(job.x) + (job.x_rows ? job.x_rows[0] : 0) * job.x_stride;
  const auto* row0 = static_cast<const char*>(job.weight) + job.row_begin * k;
  const auto* const end = static_cast<const char*>(job.weight) + job.row_end * k;
  const uint8_t* normal = job.normal_tiles;
  if (knows_normal_tiles) normal += job.row_begin / kNormalTileRows * slices;
  for (int64_t row = job.row_begin; row < job.row_end; row += kTokenRows) {
    const float* const scales = job.scales + row / kScaleBlock * job.scale_cols;
    // Beyond the job's rows stands what the worker reads next.
    const bool leaves = job.next && row0 + kTokenPrefetchBytes >= end;
    const int64_t skip = leaves ? static_cast<const char*>(job.next) - end : 0;
    const int64_t ahead = kTokenPrefetchBytes + skip;
    __m512 sum[kTokenRows];
#pragma GCC unroll 8
    for (int r = 0; r < kTokenRows; ++r) sum[r] = _mm512_setzero_ps();
    for (int64_t slice = 0; slice < slices; ++slice) {
      const char* const at = row0 + slice * kScaleBlock;
      __m512 part[kTokenRows];
      if constexpr (!knows_normal_tiles) {
        multiply_eight<load_by_table>(at, k, ahead, x + slice * kScaleBlock, part);
      } else if (normal[slice] & normal[slices + slice]) {
        multiply_eight<load_normal>(at, k, ahead, x + slice * kScaleBlock, part);
      } else {
        __m512 rare[kTokenRows];
        multiply_eight_by_table(at, k, ahead, x + slice * kScaleBlock, rare);
#pragma GCC unroll 8
        for (int r = 0; r < kTokenRows; ++r) part[r] = rare[r];
      }
      const __m512 scale = _mm512_set1_ps(scales[slice] * kFp8Scale);
#pragma GCC unroll 8
      for (int r = 0; r < kTokenRows; ++r) sum[r] = _mm512_fmadd_ps(part[r], scale, sum[r]);
    }
    store_eight(job, sum, job.y + (row - job.row_begin));
    row0 += kTokenRows * k;
    if (knows_normal_tiles) normal += 2 * slices;
  }
}

}  // namespace
}  // namespace moray::cpu
