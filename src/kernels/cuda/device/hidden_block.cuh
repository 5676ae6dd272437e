// The shape of a block over the hidden columns, and its dynamic shared memory: rings, then scratch.
#pragma once

#include "normed.cuh"
#include "partial_sums.cuh"

inline constexpr int kHiddenGroups = moray::cuda::groups_of(kHidden, moray::cuda::kHiddenSpan);
inline constexpr int kHiddenThreads =
    moray::cuda::warps_of(kHidden, moray::cuda::kHiddenSpan) * 32;
inline constexpr int kHiddenScaleCols = (kHidden + 127) / 128;
static_assert(kHidden % 8 == 0 && kHidden <= moray::cuda::kDecodeColumnsMax);

extern __shared__ char4 shared_memory[];
