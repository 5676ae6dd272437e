// What a decode step reads, piece by piece: the layers' weights with top_k routed experts each, one
// row of the embedding, the head; and how many bytes state and cache add.
#include <numeric>

#include "src/model/model.h"
#include "src/model/weights.h"

namespace moray {
namespace {

class Pieces {
 public:
  void add(const void* data, int64_t bytes) {
    if (bytes > 0) pieces_.push_back({static_cast<const std::byte*>(data), size_t(bytes)});
  }
  void add(std::span<const float> values) {
    add(values.data(), static_cast<int64_t>(values.size_bytes()));
  }
  void add(const MatrixView& matrix) {
    if (matrix.empty()) return;
    const int64_t weights = matrix.rows * matrix.cols * dtype_bytes(matrix.dtype);
    add(matrix.data, weights);
    if (matrix.scales != nullptr) add(matrix.scales, matrix.bytes() - weights);
  }
  void add(const ExpertView& expert) {
    add(expert.gate);
    add(expert.up);
    add(expert.down);
  }
  std::vector<std::span<const std::byte>> take() { return std::move(pieces_); }

 private:
  std::vector<std::span<const std::byte>> pieces_;
};

// Distinct experts spread over all, other ones for another key: a stride prime to their number.
void add_experts(const MoeWeights& w, int64_t top_k, uint64_t key, Pieces& pieces) {
  const auto count = static_cast<uint64_t>(w.experts.size());
  uint64_t stride = key / count % count | 1;
  while (std::gcd(stride, count) != 1) stride += 2;
  for (int64_t slot = 0; slot < top_k; ++slot) {
    pieces.add(w.experts[(key + static_cast<uint64_t>(slot) * stride) % count]);
  }
}

void add_layer(const LayerWeights& w, int64_t top_k, uint64_t key, Pieces& pieces) {
  pieces.add(w.input_norm);
  if (w.kind == LayerKind::kFullAttention) {
    const AttentionWeights& a = w.attention;
    for (const MatrixView& matrix : {a.q, a.k, a.v, a.o}) pieces.add(matrix);
    pieces.add(a.q_norm);
    pieces.add(a.k_norm);
  } else {
    const DeltaWeights& d = w.delta;
    for (const MatrixView& matrix : {d.qkv, d.z, d.b, d.a, d.out}) pieces.add(matrix);
    for (const auto values : {d.conv, d.a_log, d.dt_bias, d.norm}) pieces.add(values);
  }
  pieces.add(w.post_norm);
  pieces.add(w.moe.gate);
  pieces.add(w.moe.shared_gate);
  add_experts(w.moe, top_k, key, pieces);
  pieces.add(w.moe.shared);
}

// A step of splitmix64 (Steele, Lea and Flood, 2014).
uint64_t scrambled(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

}  // namespace

std::vector<std::span<const std::byte>> decode_weight_pieces(const Weights& weights,
                                                             uint64_t turn) {
  Pieces pieces;
  const MatrixView& table = weights.embedding;
  const int64_t row_bytes = table.cols * dtype_bytes(table.dtype);
  const auto row = static_cast<int64_t>(scrambled(turn) % static_cast<uint64_t>(table.rows));
  pieces.add(static_cast<const std::byte*>(table.data) + row * row_bytes, row_bytes);
  uint64_t key = scrambled(~turn);
  for (const LayerWeights& layer : weights.layers) {
    key = scrambled(key);
    add_layer(layer, weights.config.top_k, key, pieces);
  }
  pieces.add(weights.final_norm);
  pieces.add(weights.head);
  return pieces.take();
}

int64_t decode_weight_bytes(const Weights& weights) {
  int64_t bytes = 0;
  for (const auto piece : decode_weight_pieces(weights, 0)) {
    bytes += static_cast<int64_t>(piece.size());
  }
  return bytes;
}

int64_t decode_state_bytes(const Weights& weights, int64_t depth, KvFormat kv) {
  const ModelConfig& c = weights.config;
  const int64_t attention = (depth + 1) * 2 * c.num_kv_heads * kv_row_bytes(kv, c.head_dim);
  // A delta layer reads S and, of the open chunk, on average half of the keys and writes; once a
  // chunk S is read and written with all of them.
  const int64_t s = c.gdn_value_heads * c.gdn_key_dim * c.gdn_value_dim;
  const int64_t chunk = kDeltaChunk * (c.gdn_key_total() + c.gdn_value_total());
  const int64_t tail = c.gdn_conv_taps * c.gdn_conv_channels();
  const int64_t delta = 4 * (s + chunk / 2 + tail + (2 * s + chunk) / kDeltaChunk);
  return c.count_layers(LayerKind::kFullAttention) * attention +
         c.count_layers(LayerKind::kGatedDelta) * delta;
}

}  // namespace moray
