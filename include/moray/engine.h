// The engine: a loaded model (Engine, immutable) and one conversation with it (Session, mutable).
//
// This header, text.h and tools.h are all that a program needs. Invariants: an Engine may be shared
// by threads, a Session belongs to one; the same engine, prompt, options and seed give the same
// text; what a session holds is always a prefix of what was fed and sampled, also after a cancel or
// an error.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moray/text.h"
#include "src/base/status.h"

namespace moray {

struct EngineOptions {
  std::string model_folder = {};
  // "cpu"; "cuda" or "cuda:N": that GPU or an error; "auto": the first GPU if the model runs and
  // fits there, else the CPU, with a line of notes() that says why.
  std::string device = "auto";
  // Weights made up from this seed at the size config.json says, for measurements: the folder needs
  // neither shards nor a tokenizer then.
  std::optional<uint64_t> random_weights = {};
  int threads = 0;      // 0: one a physical core
  int64_t context = 0;  // tokens a session may hold; 0: the model's own, or what memory allows
  // Tokens a prefill pass; 0: 256 on the CPU, what memory allows on a GPU. On the CPU the result
  // does not depend on it.
  int64_t block_tokens = 0;
  bool float32 = false;        // FP32 activations: for proofs, slower
  // Not lossless, hence off; docs/command-line.md has what each costs.
  bool fp8_head = false;       // the head as E4M3 with 128x128 scales, quantised while loading
  bool fp8_kv = false;         // keys and values as E4M3, a scale a position and head; GPU only
  bool fast = false;           // both, as far as the device has them
  std::string cpu_level = {};  // "", "avx2" or "avx512"; "" takes the best the machine has
  // Sees which experts each layer chose for the tokens of a forward pass, [tokens, top_k], larger
  // weight first; layers in order. On the CPU only, which "auto" then takes.
  std::function<void(int64_t layer, std::span<const int32_t> expert_ids,
                     std::span<const float> weights)>
      on_routing = {};
  // (bytes read, bytes in all) while loading; false cancels.
  std::function<bool(int64_t, int64_t)> on_load = {};
};

struct SamplingOptions {
  double temperature = 0;         // 0: greedy
  int64_t top_k = 0;              // 0: off
  double top_p = 1;               // 1: off
  double min_p = 0;               // 0: off
  double repetition_penalty = 1;  // 1: off; over prompt and answer
  double presence_penalty = 0;    // over the answer
  double frequency_penalty = 0;   // over the answer
  uint64_t seed = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;
};
// Names the first field that is out of its range, with the range.
Status validate(const SamplingOptions& options, int64_t token_count);

enum class StopReason { kEndOfSequence, kStopString, kMaxTokens, kContextFull, kCancelled };

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_tokens = -1;           // -1: until the context is full
  std::vector<std::string> stop;     // text that ends the answer; never part of it
  std::vector<TokenId> stop_tokens;  // besides the model's own end tokens
  bool ignore_end_tokens = false;
  bool skip_special = true;
  // A piece of valid UTF-8; false cancels.
  std::function<bool(std::string_view)> on_text;
  // (tokens read, tokens in the prompt) after each prefill block; false cancels.
  std::function<bool(int64_t, int64_t)> on_prefill;
  const std::atomic<bool>* cancel = nullptr;  // looked at before every step
};

struct GenerateResult {
  std::string text;
  std::vector<TokenId> tokens;  // sampled, the ending one included
  StopReason stop_reason = StopReason::kMaxTokens;
  int64_t prompt_tokens = 0;
  int64_t prefill_tokens = 0;  // of these, read; fewer when cancelled
  double prefill_seconds = 0;
  double decode_seconds = 0;  // of tokens.size() - 1 steps after the prompt's own
};

// What a measurement should say about the device it was taken on.
struct DeviceFacts {
  std::string device;      // "NVIDIA H200"
  std::string clocks;      // at this moment: "SM 1980 MHz, memory 3201 MHz"
  std::string driver;      // "580.159.04 (CUDA 13.0)"
  int64_t used_bytes = 0;  // of the device's memory, by this engine
};

// One kernel of a decode step, measured alone.
struct StageTime {
  std::string name;         // "experts gate/up"
  int64_t launches = 0;     // a step
  double seconds = 0;       // of one launch
  int64_t bytes = 0;        // that one launch must read and write
  double operations = 0;    // of one launch
};

class Session;

// Reads what a decode step reads and does nothing else: the ceiling of a step.
class StepReader {
 public:
  virtual ~StepReader() = default;
  // Seconds in which the engine's threads read a step's weights where they lie, with a new
  // pseudo-random choice of routed experts, and as many bytes as its state and cache have. What
  // stayed in the caches comes from there, as it does in successive steps. On a GPU: as many bytes
  // of its weights. Errors: a lost device.
  virtual Result<double> read_seconds() = 0;
};

class Engine {
 public:
  // Everything that can be wrong with a model folder surfaces here, in one Status.
  static Result<std::shared_ptr<const Engine>> open(const EngineOptions& options);
  virtual ~Engine() = default;

  // A CHECK when tokenizer_status() is not OK.
  virtual const Tokenizer& tokenizer() const = 0;
  // Only random weights may come without a tokenizer: kNotFound then, and such an engine is for
  // measurements; its sessions consume tokens and score but do not generate text.
  virtual const Status& tokenizer_status() const = 0;
  virtual std::shared_ptr<const Tokenizer> shared_tokenizer() const = 0;
  // Null if the checkpoint has none that can be run.
  virtual const ChatTemplate* chat_template() const = 0;
  // Why chat_template() is null: kNotFound, or what in the template cannot be run.
  virtual const Status& chat_template_status() const = 0;
  virtual SamplingOptions default_sampling() const = 0;  // generation_config.json's
  virtual const std::vector<TokenId>& end_tokens() const = 0;
  virtual int64_t context() const = 0;
  virtual int64_t vocab_rows() const = 0;  // of the head, padding included
  virtual std::string model_name() const = 0;  // the folder's name
  // What computes and why: "cpu avx512, 2 threads (the best level of this machine; ...)".
  virtual std::string backend_line() const = 0;
  virtual std::string weights_line() const = 0;           // "FP8 128x128 + BF16"
  virtual std::string kv_line() const = 0;                // "BF16", "F32" or "FP8"
  // What is on that is not lossless, as flags: "lm-head=fp8 kv-type=fp8"; "" when nothing is.
  virtual std::string lossy_line() const = 0;
  // What products of a prompt's tokens take in: "FP8" (codes per 128 columns), "BF16" or "F32".
  virtual std::string prompt_activations() const = 0;
  virtual int64_t decode_bytes(int64_t depth) const = 0;  // bytes a step must read at that depth
  // To compare steps at that depth with a plain read of their bytes, by the engine's threads or its
  // GPU. May outlive this pointer to the engine. kExhausted: no memory for a stand-in of the state.
  virtual Result<std::unique_ptr<StepReader>> step_reader(int64_t depth) const = 0;
  // Of the GPU; nullopt when the CPU computes.
  virtual std::optional<DeviceFacts> device_facts() const = 0;
  // Every kernel of a decode step at that depth, in the step's order, each timed alone over the
  // layers in turn. kUnsupported on the CPU.
  virtual Result<std::vector<StageTime>> measure_stages(int64_t depth) const = 0;
  // What a user should be told once about this checkpoint, a line each.
  virtual std::span<const std::string> notes() const = 0;
  virtual Result<std::unique_ptr<Session>> new_session() const = 0;
};

class Session {
 public:
  virtual ~Session() = default;
  // Feeds `prompt` after what the session already holds and samples until something stops it. The
  // last sampled token is not fed: it is in the result, not in tokens(). A cancel is not an error.
  // kInvalidArgument: empty prompt in an empty session, an id that is no token, options out of
  // range. kExhausted: prompt longer than the context, before any work. NaN or infinite logits end
  // with kInvalidFile, a lost device with kIo; both leave the session unusable until reset() (every
  // later call says so). kUnsupported without a tokenizer.
  virtual Result<GenerateResult> generate(const std::vector<TokenId>& prompt,
                                          const GenerateOptions& options) = 0;
  // Natural-log probability of each token given those before it, over all rows of the head: of
  // tokens 1..n-1 in an empty session (the first has no context). The session then holds them all.
  // `progress` as on_prefill; false gives kCancelled.
  virtual Result<std::vector<double>> score(
      const std::vector<TokenId>& tokens,
      const std::function<bool(int64_t, int64_t)>& progress) = 0;
  // Consumes tokens and gives the logits after each, [tokens, Engine::vocab_rows]: what comparisons
  // of two engines are made of. Errors as generate(); a row may hold NaN.
  virtual Result<std::vector<float>> logits(const std::vector<TokenId>& tokens) = 0;
  // Consumes tokens without sampling, as generate() does with its prompt. Errors as generate().
  virtual Status feed(const std::vector<TokenId>& tokens,
                      const std::function<bool(int64_t, int64_t)>& progress) = 0;
  // Consumes `first` and then, one at a time, the likeliest next token, `count` (>= 1) in all;
  // returns what was picked. No text and no end tokens: what a measurement of decoding times.
  virtual Result<std::vector<TokenId>> continue_greedily(TokenId first, int64_t count) = 0;
  // What the model has consumed.
  virtual const std::vector<TokenId>& tokens() const = 0;
  virtual void reset() = 0;
};

}  // namespace moray
