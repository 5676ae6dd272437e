// Sizes and carves the buffers of a forward pass; see workspace.h.
#include "src/model/workspace.h"

#include <algorithm>

namespace moray {
namespace {

// Buffers start on cache lines, so that no two share one.
constexpr int64_t kAlignFloats = 16;

int64_t rounded_up(int64_t floats) {
  return (floats + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
}

// Hands out consecutive pieces; the first pass (no base) only measures.
class Carver {
 public:
  explicit Carver(float* base) : base_(base) {}
  std::span<float> take(int64_t floats) {
    float* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += rounded_up(floats);
    return {at, base_ == nullptr ? 0 : static_cast<size_t>(floats)};
  }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

int64_t moe_floats(const ModelConfig& c, int64_t tokens, int threads) {
  const auto shape = [&](int64_t dim) {
    ExpertView expert;
    expert.gate = {.rows = dim, .cols = c.hidden};
    expert.up = expert.gate;
    expert.down = {.rows = c.hidden, .cols = dim};
    return expert;
  };
  const std::vector<ExpertView> experts(static_cast<size_t>(c.num_experts), shape(c.expert_dim));
  MoeArgs args{};
  args.tokens = tokens;
  args.hidden = c.hidden;
  args.experts = experts;
  args.shared = shape(c.shared_expert_dim);
  args.top_k = c.top_k;
  return moe_workspace_floats(args, threads);
}

int64_t op_floats(const ModelConfig& c, int64_t tokens, int64_t capacity, int threads) {
  AttentionArgs attention = attention_arguments(c);
  attention.tokens = tokens;
  attention.position = capacity;
  int64_t floats = attention_workspace_floats(attention, threads);
  if (c.count_layers(LayerKind::kGatedDelta) > 0) {
    GdnArgs delta = delta_arguments(c);
    delta.tokens = tokens;
    delta.position = capacity;
    floats = std::max(floats, gdn_workspace_floats(delta, threads));
  }
  for (int64_t k : {c.hidden, 2 * c.hidden, c.gdn_value_total(), c.num_heads * c.head_dim}) {
    floats = std::max(floats, linear_workspace_floats(tokens, k, threads));
  }
  floats = std::max(floats, route_workspace_floats(tokens, c.hidden, c.num_experts, threads));
  return std::max(floats, moe_floats(c, tokens, threads));
}

void carve(Workspace::Impl& w, const ModelConfig& c, Carver& carver) {
  const int64_t tokens = w.block_tokens;
  const int64_t q_dim = c.num_heads * c.head_dim;
  const int64_t kv_dim = c.num_kv_heads * c.head_dim;
  w.residual = carver.take(tokens * c.hidden);
  w.x = carver.take(tokens * c.hidden);
  w.mixed_in = carver.take(tokens * std::max(c.gdn_conv_channels(), 2 * q_dim));
  w.z = carver.take(tokens * std::max(c.gdn_value_total(), kv_dim));
  w.b = carver.take(tokens * std::max(c.gdn_value_heads, kv_dim));
  w.a = carver.take(tokens * c.gdn_value_heads);
  w.mixed_out = carver.take(tokens * std::max(c.gdn_value_total(), q_dim));
  w.pair = carver.take(c.mtp_layers > 0 ? tokens * 2 * c.hidden : 0);
  w.expert_weights = carver.take(tokens * c.top_k);
  w.shared_weight = carver.take(tokens);
  const std::span<float> ids = carver.take(tokens * c.top_k);
  static_assert(sizeof(int32_t) == sizeof(float));
  w.expert_ids = {reinterpret_cast<int32_t*>(ids.data()), ids.size()};
  w.op = carver.take(op_floats(c, tokens, w.capacity, w.threads));
}

}  // namespace

GdnArgs delta_arguments(const ModelConfig& c) {
  GdnArgs args{};
  args.key_heads = c.gdn_key_heads;
  args.value_heads = c.gdn_value_heads;
  args.key_dim = c.gdn_key_dim;
  args.value_dim = c.gdn_value_dim;
  args.conv_taps = c.gdn_conv_taps;
  args.eps = static_cast<float>(c.rms_norm_eps);
  return args;
}

AttentionArgs attention_arguments(const ModelConfig& c) {
  AttentionArgs args{};
  args.heads = c.num_heads;
  args.kv_heads = c.num_kv_heads;
  args.head_dim = c.head_dim;
  args.rotary_dim = c.rotary_dim;
  args.has_gate = c.attention_output_gate;
  args.eps = static_cast<float>(c.rms_norm_eps);
  args.norm_kind = c.zero_centred_norms ? NormKind::kZeroCentred : NormKind::kPlain;
  return args;
}

Workspace::Impl::Impl(int64_t block, int64_t tokens, int thread_count)
    : block_tokens(block), capacity(tokens), threads(thread_count) {
  CHECK(block > 0 && tokens > 0 && thread_count > 0, block, tokens, thread_count);
}

int64_t Workspace::bytes_needed(const ModelConfig& config, int64_t block_tokens, int64_t capacity,
                                int threads) {
  Impl sizes(block_tokens, capacity, threads);
  Carver measure(nullptr);
  carve(sizes, config, measure);
  return measure.used() * static_cast<int64_t>(sizeof(float));
}

Workspace::Workspace(const ModelConfig& config, int64_t block_tokens, int64_t capacity, int threads)
    : impl_(std::make_unique<Impl>(block_tokens, capacity, threads)) {
  impl_->memory = LazyBytes(bytes_needed(config, block_tokens, capacity, threads));
  Carver carver(reinterpret_cast<float*>(impl_->memory.data()));
  carve(*impl_, config, carver);
}
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;
Workspace::~Workspace() = default;
int64_t Workspace::block_tokens() const {
  return impl_->block_tokens;
}
int64_t Workspace::bytes() const {
  return impl_->memory.size();
}

}  // namespace moray
