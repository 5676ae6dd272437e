// Touches or copies the matrices of a model; see read_weights.h for why.
#include "src/model/read_weights.h"

#include <algorithm>
#include <cstring>

#include "src/tensor/normal_tiles.h"

namespace moray {
namespace {

// Between two calls of progress(): often enough for a bar, seldom enough to cost nothing.
constexpr int64_t kProgressBytes = 8 << 20;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kLineBytes = 64;

void add_expert(ExpertView& expert, std::vector<MatrixView*>& all) {
  all.insert(all.end(), {&expert.gate, &expert.up, &expert.down});
}

void add_layer(LayerWeights& w, std::vector<MatrixView*>& all) {
  AttentionWeights& a = w.attention;
  DeltaWeights& d = w.delta;
  all.insert(all.end(), {&a.q, &a.k, &a.v, &a.o, &d.qkv, &d.z, &d.b, &d.a, &d.out, &w.moe.gate,
                         &w.moe.shared_gate});
  for (ExpertView& expert : w.moe.experts) add_expert(expert, all);
  add_expert(w.moe.shared, all);
}

// In the order of a forward pass, absent ones left out.
std::vector<MatrixView*> all_matrices(Weights& weights) {
  std::vector<MatrixView*> all = {&weights.embedding};
  for (LayerWeights& layer : weights.layers) add_layer(layer, all);
  if (!weights.config.tie_word_embeddings) all.push_back(&weights.head);
  if (weights.mtp) {
    all.push_back(&weights.mtp->fc);
    add_layer(weights.mtp->layer, all);
  }
  std::erase_if(all, [](const MatrixView* matrix) { return matrix->empty(); });
  return all;
}

int64_t data_bytes(const MatrixView& matrix) {
  return matrix.rows * matrix.cols * dtype_bytes(matrix.dtype);
}

int64_t whole_lines(int64_t bytes) {
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

// Reads `count` bytes into `to`, or, where that is null, one byte of every page.
void read_piece(const std::byte* from, int64_t count, std::byte* to) {
  if (to != nullptr) {
    std::memcpy(to, from, static_cast<size_t>(count));
    return;
  }
  for (int64_t at = 0; at < count; at += kPageBytes) {
    static_cast<void>(*static_cast<const volatile std::byte*>(from + at));
  }
}

}  // namespace

Status read_weights(Weights& weights, const LoadOptions& options) {
  const std::vector<MatrixView*> matrices = all_matrices(weights);
  int64_t total = 0;
  int64_t arena_bytes = 0;
  for (const MatrixView* matrix : matrices) {
    total += data_bytes(*matrix);
    arena_bytes += whole_lines(data_bytes(*matrix)) + whole_lines(normal_tile_count(*matrix));
  }
  const auto go_on = [&](int64_t done) {
    return !options.progress || options.progress(done, total);
  };
  const Status cancelled(StatusCode::kCancelled, "loading: cancelled");
  std::byte* free_space = nullptr;
  if (arena_bytes <= options.copy_bytes_max) {
    weights.arena = std::make_shared<LazyBytes>(arena_bytes);
    free_space = weights.arena->data();
  }
  int64_t done = 0;
  int64_t next_report = 0;
  for (MatrixView* matrix : matrices) {
    const auto* from = static_cast<const std::byte*>(matrix->data);
    const int64_t bytes = data_bytes(*matrix);
    for (int64_t at = 0; at < bytes; at += kProgressBytes) {
      if (done + at >= next_report) {
        if (!go_on(done + at)) return cancelled;
        next_report = done + at + kProgressBytes;
      }
      read_piece(from + at, std::min(kProgressBytes, bytes - at),
                 free_space == nullptr ? nullptr : free_space + at);
    }
    if (free_space != nullptr) {
      matrix->data = free_space;
      free_space += whole_lines(bytes);
      if (normal_tile_count(*matrix) > 0) {
        auto* const tiles = reinterpret_cast<uint8_t*>(free_space);
        find_normal_tiles(*matrix, tiles);
        matrix->normal_tiles = tiles;
        free_space += whole_lines(normal_tile_count(*matrix));
      }
    }
    done += bytes;
  }
  if (weights.config.tie_word_embeddings) weights.head = weights.embedding;
  return go_on(total) ? Status() : cancelled;
}

}  // namespace moray
