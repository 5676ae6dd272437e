// The host's half of random_fill.h, and which matrix gets which amplitude.
#include "src/model/random_weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "src/kernels/cuda/random_fill.h"
#include "src/model/blank_weights.h"

namespace moray {
namespace {

// Standard deviation of a product with inputs of order one.
double output_deviation(MatrixPart part) {
  switch (part) {
    case MatrixPart::kRouter:
    case MatrixPart::kHead:
      return 2;
    case MatrixPart::kAttentionOut:
    case MatrixPart::kDeltaOut:
      return 0.5;  // added to the residual stream of every layer
    default:
      return 1;
  }
}

// The code for each 16-bit draw.
const std::array<uint8_t, 65536>& code_table() {
  static const auto table = [] {
    std::array<uint8_t, 65536> codes{};
    for (unsigned bits = 0; bits < 65536; ++bits) {
      codes[bits] = float_to_f8e4m3(cuda::random_unit(bits) * cuda::kRandomCodeMax);
    }
    return codes;
  }();
  return table;
}

// Calls store(i, 16 random bits) for i in [begin, end); begin a multiple of 4.
template <typename Store>
void draw(uint64_t key, int64_t begin, int64_t end, Store store) {
  for (int64_t i = begin; i < end; i += 4) {
    const uint64_t word = cuda::random_word(key, static_cast<uint64_t>(i) / 4);
    const int64_t count = std::min<int64_t>(4, end - i);
    for (int64_t j = 0; j < count; ++j) {
      store(i + j, static_cast<unsigned>(word >> (16 * j)) & 0xffffu);
    }
  }
}

void fill_elements(const MatrixView& view, const RandomRecipe& recipe, int64_t begin, int64_t end) {
  void* data = const_cast<void*>(view.data);
  switch (view.dtype) {
    case DType::kF8E4M3: {
      const auto& codes = code_table();
      auto* out = static_cast<uint8_t*>(data);
      return draw(recipe.key, begin, end, [&](int64_t i, unsigned bits) { out[i] = codes[bits]; });
    }
    case DType::kBF16: {
      auto* out = static_cast<uint16_t*>(data);
      return draw(recipe.key, begin, end, [&](int64_t i, unsigned bits) {
        out[i] = float_to_bf16(cuda::random_unit(bits) * recipe.amplitude);
      });
    }
    default: {
      CHECK(view.dtype == DType::kF32, dtype_name(view.dtype));
      auto* out = static_cast<float*>(data);
      return draw(recipe.key, begin, end, [&](int64_t i, unsigned bits) {
        out[i] = cuda::random_unit(bits) * recipe.amplitude;
      });
    }
  }
}

void fill_scales(const MatrixView& view, const RandomRecipe& recipe) {
  if (view.scales == nullptr) return;
  const int64_t count = (view.rows + kScaleBlock - 1) / kScaleBlock * view.scale_cols();
  std::fill_n(const_cast<float*>(view.scales), count, recipe.amplitude / cuda::kRandomCodeMax);
}

// base + width * u for each element.
void fill_vector(std::span<const float> vector, float base, float width, uint64_t key) {
  auto* out = const_cast<float*>(vector.data());
  draw(key, 0, static_cast<int64_t>(vector.size()),
       [&](int64_t i, unsigned bits) { out[i] = base + width * cuda::random_unit(bits); });
}

}  // namespace

RandomRecipe recipe_of(const MatrixPlace& place, uint64_t seed) {
  const auto id = (static_cast<uint64_t>(place.layer) << 40) |
                  (static_cast<uint64_t>(place.part) << 32) | static_cast<uint64_t>(place.expert);
  // Of a uniform number in (-a, a) the deviation is a / sqrt(3); an embedding row is an input.
  const double inputs = place.part == MatrixPart::kEmbedding ? 1 : double(place.view->cols);
  const double amplitude = output_deviation(place.part) * std::sqrt(3 / inputs);
  return {cuda::random_word(seed, id), static_cast<float>(amplitude)};
}

void fill_random_vectors(Weights& weights, uint64_t seed) {
  const float plain = weights.config.zero_centred_norms ? 0.0f : 1.0f;
  uint64_t key = cuda::random_word(seed, ~uint64_t{0});
  const auto norm = [&](std::span<const float> w) { fill_vector(w, plain, 0.1f, ++key); };
  for (LayerWeights& layer : weights.layers) {
    norm(layer.input_norm);
    norm(layer.post_norm);
    if (layer.kind == LayerKind::kFullAttention) {
      norm(layer.attention.q_norm);
      norm(layer.attention.k_norm);
      continue;
    }
    fill_vector(layer.delta.conv, 0, 1, ++key);
    // Decays of exp(-A softplus(a + dt)): A in (1, 15), softplus about 0.02 at a = 0.
    fill_vector(layer.delta.a_log, 1.35f, 1.35f, ++key);
    fill_vector(layer.delta.dt_bias, -4, 1, ++key);
    fill_vector(layer.delta.norm, 1, 0.1f, ++key);
  }
  norm(weights.final_norm);
}

Result<std::shared_ptr<const Weights>> random_weights(
    const ModelConfig& config, HeadFormat head, uint64_t seed, ThreadPool& threads,
    const std::function<bool(int64_t, int64_t)>& progress) {
  constexpr int64_t kPieceElements = int64_t{1} << 16;
  const auto memory = std::make_shared<LazyBytes>(blank_weights_bytes(config, head));
  Weights weights = blank_weights(config, head, memory->data());
  weights.arena = memory;
  fill_random_vectors(weights, seed);
  int64_t done = 0;
  for (const MatrixPlace& place : list_matrices(weights)) {
    if (progress && !progress(done, memory->size())) {
      return Status(StatusCode::kCancelled, "loading: cancelled");
    }
    const MatrixView& view = *place.view;
    const RandomRecipe recipe = recipe_of(place, seed);
    const int64_t elements = view.rows * view.cols;
    fill_scales(view, recipe);
    threads.run((elements + kPieceElements - 1) / kPieceElements, [&](int64_t piece, int) {
      const int64_t begin = piece * kPieceElements;
      fill_elements(view, recipe, begin, std::min(begin + kPieceElements, elements));
    });
    done += view.bytes();
  }
  weights.notes.push_back(fmt::format("weights: random, seed {}; for measurements only", seed));
  return std::shared_ptr<const Weights>(std::make_shared<Weights>(std::move(weights)));
}

}  // namespace moray
