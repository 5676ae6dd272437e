// Shapes as in bind_weights.
#include "src/model/blank_weights.h"

#include "src/model/rope.h"

namespace moray {
namespace {

constexpr int64_t kAlignment = 64;

// Hands out consecutive pieces of memory. It starts one alignment in, so that a piece of a null
// block is not null: null is how a view says that it is absent.
class Pieces {
 public:
  explicit Pieces(std::byte* memory) : next_(reinterpret_cast<uintptr_t>(memory) + kAlignment) {}

  MatrixView matrix(int64_t rows, int64_t cols, DType dtype) {
    MatrixView view{nullptr, nullptr, rows, cols, dtype};
    view.data = reinterpret_cast<const void*>(take(rows * cols * dtype_bytes(dtype)));
    if (dtype == DType::kF8E4M3) {
      const int64_t scale_rows = (rows + kScaleBlock - 1) / kScaleBlock;
      view.scales = vector(scale_rows * view.scale_cols()).data();
    }
    return view;
  }
  std::span<const float> vector(int64_t count) {
    return {reinterpret_cast<const float*>(take(count * static_cast<int64_t>(sizeof(float)))),
            static_cast<size_t>(count)};
  }
  uintptr_t end() const { return next_; }

 private:
  uintptr_t take(int64_t bytes) {
    const uintptr_t at = next_;
    next_ += static_cast<uintptr_t>((bytes + kAlignment - 1) / kAlignment * kAlignment);
    return at;
  }
  uintptr_t next_;
};

AttentionWeights blank_attention(const ModelConfig& c, DType dtype, Pieces& pieces) {
  const int64_t q_dim = c.num_heads * c.head_dim;
  const int64_t kv_dim = c.num_kv_heads * c.head_dim;
  AttentionWeights w;
  w.q = pieces.matrix(c.attention_output_gate ? 2 * q_dim : q_dim, c.hidden, dtype);
  w.k = pieces.matrix(kv_dim, c.hidden, dtype);
  w.v = pieces.matrix(kv_dim, c.hidden, dtype);
  w.o = pieces.matrix(c.hidden, q_dim, dtype);
  w.q_norm = pieces.vector(c.head_dim);
  w.k_norm = pieces.vector(c.head_dim);
  return w;
}

DeltaWeights blank_delta(const ModelConfig& c, DType dtype, Pieces& pieces) {
  DeltaWeights w;
  w.qkv = pieces.matrix(c.gdn_conv_channels(), c.hidden, dtype);
  w.z = pieces.matrix(c.gdn_value_total(), c.hidden, dtype);
  w.b = pieces.matrix(c.gdn_value_heads, c.hidden, c.dtype);
  w.a = pieces.matrix(c.gdn_value_heads, c.hidden, c.dtype);
  w.out = pieces.matrix(c.hidden, c.gdn_value_total(), dtype);
  w.conv = pieces.vector(c.gdn_conv_channels() * c.gdn_conv_taps);
  w.a_log = pieces.vector(c.gdn_value_heads);
  w.dt_bias = pieces.vector(c.gdn_value_heads);
  w.norm = pieces.vector(c.gdn_value_dim);
  return w;
}

ExpertView blank_expert(int64_t dim, int64_t hidden, DType dtype, Pieces& pieces) {
  return {.gate = pieces.matrix(dim, hidden, dtype),
          .up = pieces.matrix(dim, hidden, dtype),
          .down = pieces.matrix(hidden, dim, dtype)};
}

LayerWeights blank_layer(const ModelConfig& c, LayerKind kind, DType dtype, Pieces& pieces) {
  LayerWeights w;
  w.kind = kind;
  w.input_norm = pieces.vector(c.hidden);
  w.post_norm = pieces.vector(c.hidden);
  if (kind == LayerKind::kFullAttention) {
    w.attention = blank_attention(c, dtype, pieces);
  } else {
    w.delta = blank_delta(c, dtype, pieces);
  }
  w.moe.gate = pieces.matrix(c.num_experts, c.hidden, c.dtype);
  for (int64_t e = 0; e < c.num_experts; ++e) {
    w.moe.experts.push_back(blank_expert(c.expert_dim, c.hidden, dtype, pieces));
  }
  if (c.shared_expert_dim > 0) {
    w.moe.shared_gate = pieces.matrix(1, c.hidden, c.dtype);
    w.moe.shared = blank_expert(c.shared_expert_dim, c.hidden, dtype, pieces);
  }
  return w;
}

Weights carve(const ModelConfig& config, HeadFormat head, Pieces& pieces) {
  Weights w;
  w.config = config;
  w.config.mtp_layers = 0;
  const DType dtype = config.block_fp8 ? DType::kF8E4M3 : config.dtype;
  w.embedding = pieces.matrix(config.vocab_rows, config.hidden, config.dtype);
  for (const LayerKind kind : config.layer_kinds) {
    w.layers.push_back(blank_layer(config, kind, dtype, pieces));
  }
  w.final_norm = pieces.vector(config.hidden);
  const bool is_fp8 = head == HeadFormat::kFp8;
  w.head =
      config.tie_word_embeddings && !is_fp8
          ? w.embedding
          : pieces.matrix(config.vocab_rows, config.hidden, is_fp8 ? DType::kF8E4M3 : config.dtype);
  Rope rope = make_rope(config);
  w.inv_freq = std::move(rope.inv_freq);
  w.rope_scale = rope.scale;
  return w;
}

}  // namespace

int64_t blank_weights_bytes(const ModelConfig& config, HeadFormat head) {
  Pieces pieces(nullptr);
  carve(config, head, pieces);
  return static_cast<int64_t>(pieces.end());
}

Weights blank_weights(const ModelConfig& config, HeadFormat head, std::byte* memory) {
  Pieces pieces(memory);
  return carve(config, head, pieces);
}

}  // namespace moray
