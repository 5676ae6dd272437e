// A sequence's memory; see state.h for what it holds and model.h for what it promises.
#include "src/model/state.h"

#include <cstring>

namespace moray {
namespace {

int64_t kv_cache_count(const ModelConfig& config) {
  return config.count_layers(LayerKind::kFullAttention) + (config.mtp_layers > 0 ? 1 : 0);
}

}  // namespace

StateSizes::StateSizes(const ModelConfig& c, Precision precision)
    : kv_heads(c.num_kv_heads),
      head_dim(c.head_dim),
      kv_element_bytes(precision == Precision::kBfloat16 ? 2 : 4),
      kv_dtype(precision == Precision::kBfloat16 ? DType::kBF16 : DType::kF32),
      conv_tail((c.gdn_conv_taps - 1 + kDeltaChunk) * c.gdn_conv_channels()),
      s(c.gdn_value_heads * c.gdn_key_dim * c.gdn_value_dim),
      keys(c.gdn_key_heads * kDeltaChunk * c.gdn_key_dim),
      writes(c.gdn_value_heads * kDeltaChunk * c.gdn_value_dim),
      log_decay(c.gdn_value_heads * kDeltaChunk) {}

State::Impl::Impl(const ModelConfig& config, int64_t tokens, Precision chosen)
    : sizes(config, chosen),
      precision(chosen),
      capacity(tokens),
      has_mtp_cache(config.mtp_layers > 0) {
  CHECK(tokens > 0, tokens);
  for (int64_t i = 0; i < kv_cache_count(config); ++i) {
    kv.emplace_back(sizes.kv_bytes(tokens));
  }
  for (int64_t i = 0; i < config.count_layers(LayerKind::kGatedDelta); ++i) {
    delta.emplace_back(sizes.delta_floats() * static_cast<int64_t>(sizeof(float)));
  }
}

KvView State::Impl::kv_view(size_t index) {
  std::byte* keys = kv[index].data();
  return {.keys = keys,
          .values = keys + kv[index].size() / 2,
          .capacity = capacity,
          .dtype = sizes.kv_dtype};
}

GdnStateView State::Impl::delta_view(size_t index) {
  GdnStateView view{};
  view.conv_tail = reinterpret_cast<float*>(delta[index].data());
  view.s = view.conv_tail + sizes.conv_tail;
  view.keys = view.s + sizes.s;
  view.writes = view.keys + sizes.keys;
  view.log_decay = view.writes + sizes.writes;
  return view;
}

State::State(const ModelConfig& config, int64_t capacity, Precision precision)
    : impl_(std::make_unique<Impl>(config, capacity, precision)), config_(config) {}
State::State(State&&) noexcept = default;
State& State::operator=(State&&) noexcept = default;
State::~State() = default;

State State::snapshot() const {
  State copy(config_, impl_->capacity, impl_->precision);
  Impl& to = *copy.impl_;
  to.position = impl_->position;
  to.mtp_length = impl_->mtp_length;
  const int64_t row_bytes = to.sizes.head_dim * to.sizes.kv_element_bytes;
  for (size_t i = 0; i < to.kv.size(); ++i) {
    const bool is_mtp = to.has_mtp_cache && i + 1 == to.kv.size();
    const int64_t used = (is_mtp ? to.mtp_length : to.position) * row_bytes;
    for (int64_t head = 0; head < 2 * to.sizes.kv_heads; ++head) {
      const int64_t at = head * to.capacity * row_bytes;
      std::memcpy(to.kv[i].data() + at, impl_->kv[i].data() + at, static_cast<size_t>(used));
    }
  }
  for (size_t i = 0; i < to.delta.size() && to.position > 0; ++i) {
    std::memcpy(to.delta[i].data(), impl_->delta[i].data(),
                static_cast<size_t>(to.delta[i].size()));
  }
  return copy;
}

int64_t State::position() const {
  return impl_->position;
}
int64_t State::capacity() const {
  return impl_->capacity;
}

int64_t State::bytes() const {
  int64_t bytes = 0;
  for (const LazyBytes& part : impl_->kv) bytes += part.size();
  for (const LazyBytes& part : impl_->delta) bytes += part.size();
  return bytes;
}

int64_t State::bytes_needed(const ModelConfig& config, int64_t capacity, Precision precision) {
  const StateSizes sizes(config, precision);
  return kv_cache_count(config) * sizes.kv_bytes(capacity) +
         config.count_layers(LayerKind::kGatedDelta) * sizes.delta_floats() *
             static_cast<int64_t>(sizeof(float));
}

int64_t State::rewind_limit() const {
  const bool has_delta = !impl_->delta.empty();
  if (impl_->position == 0 || !has_delta) return 0;
  return (impl_->position - 1) / kDeltaChunk * kDeltaChunk + 1;
}

void State::rewind(int64_t position) {
  CHECK(position == 0 || (position >= rewind_limit() && position <= impl_->position), position,
        rewind_limit(), impl_->position);
  impl_->position = position;
  impl_->mtp_length = std::min(impl_->mtp_length, position);
}

}  // namespace moray
