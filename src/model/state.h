// What State holds: one KV cache a full-attention layer (the MTP head's last), one delta state a
// gated-delta layer, and how far each is filled.
//
// Invariant: KV slots [0, position) of trunk layers and [0, mtp_length) of the MTP cache are valid,
// and delta states are those after `position` tokens; nothing else in the memory has meaning.
#pragma once

#include <vector>

#include "src/model/lazy_bytes.h"
#include "src/model/model.h"

namespace moray {

// Element counts of the parts of one layer's state.
struct StateSizes {
  int64_t kv_heads, head_dim, kv_element_bytes;
  DType kv_dtype;
  int64_t conv_tail, s, keys, writes, log_decay;  // floats

  StateSizes(const ModelConfig& config, Precision precision);
  int64_t kv_bytes(int64_t capacity) const {
    return 2 * kv_heads * capacity * head_dim * kv_element_bytes;
  }
  int64_t delta_floats() const { return conv_tail + s + keys + writes + log_decay; }
};

struct State::Impl {
  Impl(const ModelConfig& config, int64_t tokens, Precision chosen);

  KvView kv_view(size_t index);
  GdnStateView delta_view(size_t index);

  StateSizes sizes;
  Precision precision;
  int64_t capacity;
  int64_t position = 0;
  int64_t mtp_length = 0;
  bool has_mtp_cache;
  std::vector<LazyBytes> kv;     // keys, then values, each [kv_head, capacity, head_dim]
  std::vector<LazyBytes> delta;  // conv_tail | s | keys | writes | log_decay
};

}  // namespace moray
