// The vocabulary head as block FP8, made while loading: half the bytes of a BF16 head, which is a
// sixth to a third of what a decode step reads.
//
// Invariant: codes and scales are what `moray` finds in an FP8 checkpoint's other matrices, so that
// the same kernels run: per block of 128 rows and columns scale = largest magnitude / 448 in FP32,
// code = E4M3 nearest to w / scale, ties to even. A code errs by at most 2^-4 of its weight, or by
// 2^-10 of a scale where the weight is below 2^-6 of one. Scales per row would not be closer:
// E4M3 keeps that relative precision over 15 octaves below a block's largest weight.
#pragma once

#include <memory>

#include "src/base/thread_pool.h"
#include "src/model/weights.h"

namespace moray {

// Host memory of such a head, besides the published one.
int64_t fp8_head_bytes(const ModelConfig& config);

// The same weights with the head quantised (unchanged if it is FP8 already). The MTP head uses it
// too; a tied embedding stays as published. Cost: one read of the published head, which a file may
// still have to deliver.
std::shared_ptr<const Weights> with_fp8_head(const Weights& weights, ThreadPool& threads);

}  // namespace moray
