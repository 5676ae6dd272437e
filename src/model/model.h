// A loaded model as plain data and functions: weights, per-sequence state, forward.
//
// Invariant: Weights are immutable after load and shared by any number of sequences; a State is a
// value (copy = snapshot) that belongs to one sequence; forward() reads the first and advances the
// second. Which family a checkpoint belongs to is decided once, in load_weights().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "src/base/status.h"
#include "src/formats/checkpoint.h"
#include "src/kernels/cpu/cpu.h"
#include "src/kernels/ops.h"

namespace moray {

struct Weights;  // weights.h

// Keys and values of a position and head: as the pass computes them, or E4M3 codes and their FP32
// scale (GPU only; src/kernels/cuda/attention.h).
enum class KvFormat : uint8_t { kF32, kBf16, kFp8 };
constexpr KvFormat kv_format(Precision precision) {
  return precision == Precision::kFloat32 ? KvFormat::kF32 : KvFormat::kBf16;
}
constexpr int64_t kv_element_bytes(KvFormat format) {
  return format == KvFormat::kF32 ? 4 : format == KvFormat::kBf16 ? 2 : 1;
}
// Of a key, or a value, with its scale.
constexpr int64_t kv_row_bytes(KvFormat format, int64_t head_dim) {
  return head_dim * kv_element_bytes(format) + (format == KvFormat::kFp8 ? 4 : 0);
}

// Binds and validates every tensor the config promises; all disagreements in one kInvalidFile.
// Reads the bytes once (so that they are in memory and errors surface now), reporting progress as
// (bytes done, bytes in all); a false return cancels (kCancelled). kUnsupported: another family.
// A model of up to copy_bytes_max bytes is copied from its files to huge pages, which makes a
// decode step about a tenth faster (fewer page walks, prefetch across 4 KiB) and frees it from the
// fate of the files; a larger one stays mapped and shares its pages with other processes.
// `is_read` false leaves the bytes where they are, for whoever reads each of them anyway.
struct LoadOptions {
  int64_t copy_bytes_max = int64_t{1} << 30;
  bool is_read = true;
  std::function<bool(int64_t, int64_t)> progress = nullptr;
};
Result<std::shared_ptr<const Weights>> load_weights(std::shared_ptr<const Checkpoint> checkpoint,
                                                    const LoadOptions& options);
const ModelConfig& config_of(const Weights& weights);
bool has_mtp(const Weights& weights);
// What a user should be told once, one line each ("mtp.*: config.json promises ...").
std::span<const std::string> notes_of(const Weights& weights);
// The weights a decode step of one token reads at cache depth 0, where they lie: trunk, head and, a
// layer, top_k routed experts that depend on `turn` pseudo-randomly. The sizes do not depend on it.
std::vector<std::span<const std::byte>> decode_weight_pieces(const Weights& weights, uint64_t turn);
// Their bytes, and the state and cache bytes a step adds at `depth`: what `moray bench` compares
// with a read of the same bytes.
int64_t decode_weight_bytes(const Weights& weights);
int64_t decode_state_bytes(const Weights& weights, int64_t depth, KvFormat kv);

// Everything a sequence remembers: KV of the full-attention layers, GDN states, MTP's own KV.
// Memory is committed as the sequence grows, at most bytes(). Copying is a snapshot; copies cost
// what is in use and are made only by name.
class State {
 public:
  // Ask bytes_needed() first: memory that cannot be mapped is a CHECK here.
  State(const ModelConfig& config, int64_t capacity, Precision precision);
  State(State&&) noexcept;
  State& operator=(State&&) noexcept;
  ~State();
  State snapshot() const;
  int64_t position() const;  // tokens consumed
  int64_t capacity() const;  // tokens that fit
  int64_t bytes() const;
  static int64_t bytes_needed(const ModelConfig& config, int64_t capacity, Precision precision);
  // Forgets the tokens from `position` on: 0 or any position in [rewind_limit(), position()].
  // The limit is the start of the open chunk of 64 plus one, because delta states fold by chunks.
  int64_t rewind_limit() const;
  void rewind(int64_t position);

  struct Impl;
  Impl& impl() { return *impl_; }
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
  ModelConfig config_;
};

// Buffers a forward pass works in, for up to `block_tokens` tokens a pass, sequences of up to
// `capacity` tokens and `threads` threads. Made once; used by one call at a time.
class Workspace {
 public:
  Workspace(const ModelConfig& config, int64_t block_tokens, int64_t capacity, int threads);
  Workspace(Workspace&&) noexcept;
  Workspace& operator=(Workspace&&) noexcept;
  ~Workspace();
  int64_t block_tokens() const;
  int64_t bytes() const;
  static int64_t bytes_needed(const ModelConfig& config, int64_t block_tokens, int64_t capacity,
                              int threads);
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// A layer's choice of experts for all tokens of a call, [tokens, top_k], larger weight first. Lent
// until it returns.
using RoutingObserver = std::function<void(int64_t layer, std::span<const int32_t> expert_ids,
                                           std::span<const float> weights)>;

struct ForwardArgs {
  std::span<const int32_t> tokens;  // 1..block_tokens ids, all in [0, vocab_rows)
  State* state;                     // advanced by tokens.size(); must have room
  Precision precision;              // the state's own
  // Logits of the last `logit_rows` tokens, [logit_rows, vocab_rows] FP32; 0: none.
  int64_t logit_rows = 1;
  float* logits = nullptr;
  // Hidden states after the final norm of all tokens, [tokens, hidden]; may be null.
  float* hidden = nullptr;
  // May be null. Called layer after layer; results do not change, the last layer takes longer.
  const RoutingObserver* on_routing = nullptr;
};
// No allocation, no failure: preconditions are CHECKed. A token's logits are bit-equal whatever the
// split into calls, block size and thread count.
void forward(const Weights& weights, const cpu::Context& context, Workspace& workspace,
             const ForwardArgs& args);

// The MTP head on pairs (hidden after the final norm at t, token t+1): appends to its own KV cache
// and gives logits for token t+2 and the head's own hidden (fed back for further drafts).
struct MtpArgs {
  std::span<const int32_t> next_tokens;  // [tokens] token t+1
  const float* hidden;                   // [tokens, hidden]
  State* state;
  int64_t position;  // MTP cache slot of the first pair; slots before it are valid
  Precision precision;
  int64_t logit_rows = 1;
  float* logits = nullptr;
  float* hidden_out = nullptr;  // [tokens, hidden] after mtp.norm; may be null
};
void mtp_forward(const Weights& weights, const cpu::Context& context, Workspace& workspace,
                 const MtpArgs& args);

}  // namespace moray
