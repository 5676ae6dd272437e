// Everything a sequence remembers, on the device: KV of the full-attention layers, delta states.
//
// Invariant: contents and their meaning are those of State (model.h, state.h) under
// Precision::kBfloat16, layer by layer, so that a state with BF16 keys and values can be moved
// between host and device. The position is the host's; kernels are told it. KV capacity is rounded
// up to a multiple of 128, the keys that attention takes at a time. With FP8 keys and values there
// is room for those of one layer as BF16, in which a prompt's attention unpacks them.
#pragma once

#include <memory>
#include <vector>

#include "src/gpu/memory.h"
#include "src/kernels/cuda/attention_params.h"
#include "src/kernels/cuda/delta.h"
#include "src/model/model.h"

namespace moray {

class GpuState {
 public:
  GpuState() = default;  // holds nothing
  static int64_t bytes_needed(const ModelConfig& config, KvFormat kv, int64_t capacity);
  // Errors: kExhausted.
  static Result<GpuState> create(const std::shared_ptr<gpu::Device>& device,
                                 const ModelConfig& config, KvFormat kv, int64_t capacity);

  int64_t position() const { return position_; }
  int64_t capacity() const { return capacity_; }
  int64_t bytes() const { return memory_.bytes(); }
  void advance(int64_t tokens);
  // As State: forgets the tokens from `position` on, 0 or in [rewind_limit(), position()].
  int64_t rewind_limit() const;
  void rewind(int64_t position);

  const cuda::KvCache& kv(size_t index) const { return kv_[index]; }
  const cuda::KvCache& unpacked_kv() const { return unpacked_; }  // null keys unless FP8
  const cuda::DeltaState& delta(size_t index) const { return delta_[index]; }

  // What `from` remembers; of equal config and capacity. Enqueued, no allocation.
  void copy_from(gpu::Stream& stream, const GpuState& from);
  // To and from the host, BF16 only; wait for the copies. For tests and for states that move.
  Status upload(gpu::Stream& stream, State& from);
  Status download(gpu::Stream& stream, State& to) const;

 private:
  int64_t position_ = 0;
  int64_t capacity_ = 0;
  int64_t kv_heads_ = 0, head_dim_ = 0;
  cuda::DeltaShape shape_{};
  gpu::DeviceMemory memory_;
  std::vector<cuda::KvCache> kv_;
  cuda::KvCache unpacked_{};
  std::vector<cuda::DeltaState> delta_;
};

}  // namespace moray
