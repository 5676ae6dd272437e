// Decode step: a draw among the top_k likeliest tokens, as src/generate/sampler.h makes it.
//
// A candidate is a 64-bit key that orders as the sampler ranks: the logit's bits made monotone,
// then the complement of the id, so that of equal logits the lower id comes first. sample_select
// sorts a segment of the vocabulary a block and keeps its best; sample_draw sorts what was kept and
// draws. Weights and sums are those of sample_math.h, in the sampler's order, hence its bits.
//
// Sorting a segment whole costs the same whatever the logits are, which a search for the k-th
// largest would not.
#include "constants.cuh"
#include "device/async_copy.cuh"
#include "device/grid.cuh"
#include "device/next_step.cuh"
#include "sample_math.h"

using namespace moray::cuda;

namespace {

constexpr uint64 kNotFinite = ~uint64{0};  // above every candidate
constexpr uint64 kNone = 0;                // below every candidate

constexpr int power_of_two(int at_least) {
  int size = 1;
  while (size < at_least) size *= 2;
  return size;
}
constexpr int kSegment = (kVocabRows + kSampleBlocks - 1) / kSampleBlocks;
constexpr int kSegmentKeys = power_of_two(kSegment > kSampleTopKMax ? kSegment : kSampleTopKMax);
constexpr int kRankedKeys = kSampleBlocks * kSampleTopKMax;
static_assert(kRankedKeys == power_of_two(kRankedKeys));
static_assert(kSegmentKeys * sizeof(uint64) <= 48 * 1024, "static shared memory");

__device__ __forceinline__ uint64 key_of(float logit, int id) {
  if (!(fabsf(logit) <= 0x1.fffffep127f)) return kNotFinite;
  const uint32 bits = __float_as_uint(logit + 0.0f);  // -0 is 0
  const uint32 ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64>(ordered) << 32 | ~static_cast<uint32>(id);
}
__device__ __forceinline__ int id_of(uint64 key) {
  return static_cast<int>(~static_cast<uint32>(key));
}
__device__ __forceinline__ float logit_of(uint64 key) {
  const uint32 ordered = static_cast<uint32>(key >> 32);
  return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

// Batcher's bitonic sort, largest first, by the whole block. Keys written before the call need no
// barrier; afterwards every thread sees them sorted.
template <int kCount>
__device__ __forceinline__ void sort_descending(uint64* keys) {
  for (int size = 2; size <= kCount; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < kCount / 2; i += kSampleThreads) {
        const int low = 2 * i - (i & (stride - 1));
        const uint64 a = keys[low], b = keys[low + stride];
        const bool descends = (low & size) == 0;
        if ((a < b) != descends) continue;
        keys[low] = b;
        keys[low + stride] = a;
      }
    }
  }
  __syncthreads();
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kSampleThreads)
    sample_select(const __grid_constant__ SampleParams p) {
  __shared__ uint64 keys[kSegmentKeys];
  let_next_start();
  wait_for_previous();
  const int first = blockIdx.x * kSegment;
  for (int i = threadIdx.x; i < kSegmentKeys; i += kSampleThreads) {
    const int id = first + i;
    const bool is_candidate = i < kSegment && id < kVocabRows && may_sample(p.sampleable, id);
    keys[i] = is_candidate ? key_of(load_fresh_float(p.logits + id), id) : kNone;
  }
  sort_descending<kSegmentKeys>(keys);
  for (int i = threadIdx.x; i < kSampleTopKMax; i += kSampleThreads) {
    p.ranked[blockIdx.x * kSampleTopKMax + i] = keys[i];
  }
}

extern "C" __global__ void __launch_bounds__(kSampleThreads)
    sample_draw(const __grid_constant__ SampleParams p) {
  __shared__ uint64 keys[kRankedKeys];
  __shared__ double weights[kSampleTopKMax];
  let_next_start();
  wait_for_previous();
  for (int i = threadIdx.x; i < kRankedKeys; i += kSampleThreads) {
    const auto* half = reinterpret_cast<const float*>(p.ranked + i);
    keys[i] = static_cast<uint64>(__float_as_uint(load_fresh_float(half + 1))) << 32 |
              __float_as_uint(load_fresh_float(half));
  }
  sort_descending<kRankedKeys>(keys);
  const DrawSettings settings = *p.settings;
  const double most = logit_of(keys[0]);
  for (int i = threadIdx.x; i < settings.top_k; i += kSampleThreads) {
    weights[i] = exp_nonpositive((logit_of(keys[i]) - most) / settings.temperature);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  int id = -1;
  if (keys[0] != kNotFinite && keys[0] != kNone) {
    int count = 0;
    while (count < settings.top_k && keys[count] != kNone) ++count;
    const int position = p.step->position + p.step->count;
    id = id_of(keys[draw_ranked(weights, count, settings, static_cast<uint64>(position))]);
  }
  hand_on(id, p.step, p.ring, p.ring_entries);
}
