#include "src/model/gpu_state.h"

#include <algorithm>

#include "src/gpu/stream.h"
#include "src/model/state.h"

namespace moray {
namespace {

constexpr int64_t kAlignment = 256;

int64_t padded_capacity(int64_t capacity) {
  return (capacity + cuda::kAttentionTileKeys - 1) / cuda::kAttentionTileKeys *
         cuda::kAttentionTileKeys;
}

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Bytes of the keys, or of the values, of one layer.
int64_t element_bytes(const ModelConfig& c, KvFormat kv, int64_t capacity) {
  return aligned(c.num_kv_heads * padded_capacity(capacity) * c.head_dim * kv_element_bytes(kv));
}
// And of their scales.
int64_t scale_bytes(const ModelConfig& c, KvFormat kv, int64_t capacity) {
  return kv == KvFormat::kFp8 ? aligned(4 * c.num_kv_heads * padded_capacity(capacity)) : 0;
}
int64_t cache_bytes(const ModelConfig& c, KvFormat kv, int64_t capacity) {
  return 2 * (element_bytes(c, kv, capacity) + scale_bytes(c, kv, capacity));
}
cuda::KvCache cache_at(const ModelConfig& c, KvFormat kv, int64_t capacity, char* memory) {
  const int64_t elements = element_bytes(c, kv, capacity);
  cuda::KvCache cache{};
  cache.keys = memory;
  cache.values = memory + elements;
  if (kv == KvFormat::kFp8) {
    cache.key_scales = reinterpret_cast<float*>(memory + 2 * elements);
    cache.value_scales = cache.key_scales + scale_bytes(c, kv, capacity) / 4;
  }
  cache.capacity = static_cast<int>(padded_capacity(capacity));
  return cache;
}

cuda::DeltaShape delta_shape(const ModelConfig& c) {
  cuda::DeltaShape shape{};
  shape.key_heads = static_cast<int>(c.gdn_key_heads);
  shape.value_heads = static_cast<int>(c.gdn_value_heads);
  shape.key_dim = static_cast<int>(c.gdn_key_dim);
  shape.value_dim = static_cast<int>(c.gdn_value_dim);
  shape.taps = static_cast<int>(c.gdn_conv_taps);
  return shape;
}

// A part of a delta state on both sides.
struct Part {
  float* host;
  float* device;
  int64_t bytes;
};
std::vector<Part> parts_of(const GdnStateView& host, const cuda::DeltaState& device,
                           const StateSizes& sizes) {
  return {{host.conv_tail, device.conv_tail, 4 * sizes.conv_tail},
          {host.s, device.s, 4 * sizes.s},
          {host.keys, device.keys, 4 * sizes.keys},
          {host.writes, device.writes, 4 * sizes.writes},
          {host.log_decay, device.log_decay, 4 * sizes.log_decay}};
}

}  // namespace

int64_t GpuState::bytes_needed(const ModelConfig& c, KvFormat kv, int64_t capacity) {
  const int64_t unpacked =
      kv == KvFormat::kFp8 ? cache_bytes(c, KvFormat::kBf16, capacity) : int64_t{0};
  return c.count_layers(LayerKind::kFullAttention) * cache_bytes(c, kv, capacity) + unpacked +
         c.count_layers(LayerKind::kGatedDelta) * cuda::delta_state_bytes(delta_shape(c));
}

Result<GpuState> GpuState::create(const std::shared_ptr<gpu::Device>& device, const ModelConfig& c,
                                  KvFormat kv, int64_t capacity) {
  CHECK(capacity > 0 && kv != KvFormat::kF32, capacity);
  GpuState state;
  state.capacity_ = capacity;
  state.kv_heads_ = c.num_kv_heads;
  state.head_dim_ = c.head_dim;
  state.shape_ = delta_shape(c);
  ASSIGN_OR_RETURN(state.memory_,
                   gpu::DeviceMemory::allocate(device, bytes_needed(c, kv, capacity)));
  char* next = state.memory_.data();
  const auto take = [&next](int64_t bytes) {
    char* at = next;
    next += bytes;
    return at;
  };
  for (const LayerKind kind : c.layer_kinds) {
    if (kind == LayerKind::kFullAttention) {
      state.kv_.push_back(cache_at(c, kv, capacity, take(cache_bytes(c, kv, capacity))));
    } else {
      const int64_t bytes = cuda::delta_state_bytes(state.shape_);
      state.delta_.push_back(cuda::delta_state_at(state.shape_, take(bytes)));
    }
  }
  if (kv == KvFormat::kFp8) {
    state.unpacked_ =
        cache_at(c, KvFormat::kBf16, capacity, take(cache_bytes(c, KvFormat::kBf16, capacity)));
  }
  return state;
}

void GpuState::advance(int64_t tokens) {
  CHECK(position_ + tokens <= capacity_, position_, tokens, capacity_);
  position_ += tokens;
}

int64_t GpuState::rewind_limit() const {
  if (position_ == 0 || delta_.empty()) return 0;
  return (position_ - 1) / kDeltaChunk * kDeltaChunk + 1;
}

void GpuState::rewind(int64_t position) {
  CHECK(position == 0 || (position >= rewind_limit() && position <= position_), position,
        rewind_limit(), position_);
  position_ = position;
}

void GpuState::copy_from(gpu::Stream& stream, const GpuState& from) {
  CHECK(memory_.bytes() == from.memory_.bytes() && capacity_ == from.capacity_, capacity_,
        from.capacity_);
  gpu::copy_on_device(stream, memory_.data(), from.memory_.data(), memory_.bytes());
  position_ = from.position_;
}

Status GpuState::upload(gpu::Stream& stream, State& from) {
  State::Impl& host = from.impl();
  CHECK(host.precision == Precision::kBfloat16 && host.position <= capacity_, host.position);
  CHECK(unpacked_.keys == nullptr, "FP8 keys stay on the device");
  const int64_t row = kv_row_bytes(KvFormat::kBf16, head_dim_);
  for (size_t i = 0; i < kv_.size(); ++i) {
    const KvView view = host.kv_view(i);
    for (int64_t head = 0; head < kv_heads_; ++head) {
      const int64_t to = head * kv_[i].capacity * row;
      const int64_t at = head * view.capacity * row;
      const int64_t bytes = host.position * row;
      gpu::copy_to_device(stream, static_cast<char*>(kv_[i].keys) + to,
                          static_cast<char*>(view.keys) + at, bytes);
      gpu::copy_to_device(stream, static_cast<char*>(kv_[i].values) + to,
                          static_cast<char*>(view.values) + at, bytes);
    }
  }
  for (size_t i = 0; i < delta_.size(); ++i) {
    for (const Part& part : parts_of(host.delta_view(i), delta_[i], host.sizes)) {
      gpu::copy_to_device(stream, part.device, part.host, part.bytes);
    }
  }
  position_ = host.position;
  return stream.synchronize();
}

Status GpuState::download(gpu::Stream& stream, State& to) const {
  State::Impl& host = to.impl();
  CHECK(host.precision == Precision::kBfloat16 && position_ <= host.capacity, position_);
  CHECK(unpacked_.keys == nullptr, "FP8 keys stay on the device");
  const int64_t row = kv_row_bytes(KvFormat::kBf16, head_dim_);
  for (size_t i = 0; i < kv_.size(); ++i) {
    const KvView view = host.kv_view(i);
    for (int64_t head = 0; head < kv_heads_; ++head) {
      const int64_t from = head * kv_[i].capacity * row;
      const int64_t at = head * view.capacity * row;
      const int64_t bytes = position_ * row;
      gpu::copy_to_host(stream, static_cast<char*>(view.keys) + at,
                        static_cast<const char*>(kv_[i].keys) + from, bytes);
      gpu::copy_to_host(stream, static_cast<char*>(view.values) + at,
                        static_cast<const char*>(kv_[i].values) + from, bytes);
    }
  }
  for (size_t i = 0; i < delta_.size(); ++i) {
    for (const Part& part : parts_of(host.delta_view(i), delta_[i], host.sizes)) {
      gpu::copy_to_host(stream, part.host, part.device, part.bytes);
    }
  }
  host.position = position_;
  return stream.synchronize();
}

}  // namespace moray
