// attention_step: norm, rotate and append 1..16 tokens, attend over the cache, gate; one kernel.
//
// A block owns one split of one KV head: consecutive tiles of 128 keys. The query heads of that KV
// head (or heads of several tokens) are the columns of the tensor-core tiles, so that each byte of
// the cache is read once for up to 32 of them (device/attention_pass.cuh). At least 64 KiB a
// multiprocessor are in flight at head_dim 256, about twice what covers the latency of an H200's
// memory. Partial results of splits are combined by the blocks that arrive last
// (device/attention_combine.cuh).
//
// Invariant: a column's sums depend on its token's position alone. Which tiles form a split is a
// function of the position; tokens of a step that differ there are taken in separate runs.
// Everything below Step.position in the cache, and Step itself, was written by earlier steps, whose
// launches have finished: it is read before wait_for_previous().
#include "attention_params.h"
#include "constants.cuh"
#include "device/attention_combine.cuh"
#include "device/attention_pass.cuh"
#include "device/attention_prepare.cuh"
#include "device/grid.cuh"

namespace moray::cuda {

template <int N>
__device__ __forceinline__ void attention_step(const AttentionStepParams& params, char* memory) {
  Shared<N>& shared = *reinterpret_cast<Shared<N>*>(memory);
  constexpr int kBytes = attention_step_shared_bytes(kHeadDim, kSplits, 8 * N);
  static_assert(sizeof(Shared<N>) <= kBytes);
  const int split = blockIdx.x, kv_head = blockIdx.y;
  const int position = params.step->position, count = params.step->count;
  int arriving = 0;
  for (int token = 0; token < count; ++token) {
    arriving = max(arriving, splits_of(position + token));
  }
  if (split >= arriving) return;

  bool has_waited = false;
  for (int begin = 0, end = 0; begin < count; begin = end) {  // a run: [begin, end)
    const int per_split = split_tiles_of(position + begin);
    for (end = begin + 1; end < count && split_tiles_of(position + end) == per_split;) ++end;
    const int first = split * per_split;
    const int last = min(first + per_split, tiles_of(position + end - 1));
    if (first >= last) continue;
    const int run_columns = (end - begin) * kGroup;
    for (int column = 0; column < run_columns; column += 8 * N) {
      Pass<N> pass(params, shared, kv_head, position, count);
      pass.load_keys(first);
      pass.load_values(first);
      if (!has_waited) {
        wait_for_previous();
        let_next_start();
        has_waited = true;
      }
      prepare(params, shared,
              {.kv_head = kv_head,
               .position = position,
               .first_token = begin,
               .columns = run_columns,
               .first_column = column,
               .new_rows = column == 0 && last * kTile > position ? count : 0,
               .append_begin = max(first * kTile, position + begin),
               .append_end = min(last * kTile, position + end)});
      __syncthreads();
      pass.run(first, last, split, begin, run_columns, column, arriving == 1);
    }
  }
  if (arriving > 1) combine_splits(params, shared, kv_head, position, count, arriving);
}

extern __shared__ __align__(16) char attention_step_memory[];

// Grid (splits, kv_heads), 256 threads, one block a multiprocessor. Reads 4 * kv_heads * head_dim
// bytes and does 4 * heads * head_dim FLOP a cached position and token.
extern "C" __global__ void __launch_bounds__(256, 1)
    attention_step_narrow(const __grid_constant__ AttentionStepParams params) {
  attention_step<1>(params, attention_step_memory);
}
extern "C" __global__ void __launch_bounds__(256, 1)
    attention_step_pair(const __grid_constant__ AttentionStepParams params) {
  attention_step<2>(params, attention_step_memory);
}
extern "C" __global__ void __launch_bounds__(256, 1)
    attention_step_wide(const __grid_constant__ AttentionStepParams params) {
  attention_step<4>(params, attention_step_memory);
}

}  // namespace moray::cuda
