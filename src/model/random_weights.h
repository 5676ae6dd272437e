// Made-up weights at any config's size, for measuring speed without a checkpoint.
//
// Invariant: values are a function of (config, seed) alone, the same on the host and on a device.
// They are scaled so that activations stay of order one through any number of layers, router logits
// spread (standard deviation 2, so that experts differ by token) and logits are finite.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "src/base/thread_pool.h"
#include "src/model/matrix_list.h"
#include "src/model/weights.h"

namespace moray {

// How one matrix is made: elements u(key, i) * amplitude (src/kernels/cuda/random_fill.h).
struct RandomRecipe {
  uint64_t key;
  float amplitude;
};
RandomRecipe recipe_of(const MatrixPlace& place, uint64_t seed);

// Fills the vectors (norms, convolution taps, decay parameters) of blank weights; matrices are
// left.
void fill_random_vectors(Weights& weights, uint64_t seed);

// The whole model in host memory, of blank_weights_bytes(); ask for room first. `progress` as in
// LoadOptions; kCancelled is the only error.
Result<std::shared_ptr<const Weights>> random_weights(
    const ModelConfig& config, HeadFormat head, uint64_t seed, ThreadPool& threads,
    const std::function<bool(int64_t, int64_t)>& progress);

}  // namespace moray
