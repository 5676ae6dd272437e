// Engine::open: a model folder becomes something that sessions can be made from.
//
// Invariant: everything that can be wrong with folder, machine or memory has been said when open()
// returns; what follows cannot fail but for a device that is lost. Here are the text side of a
// model and the choice of what computes; the computing side is a Backend.
#include "moray/engine.h"

#include <fmt/core.h>

#include <charconv>
#include <filesystem>
#include <new>
#include <numeric>
#include <optional>
#include <system_error>

#include "src/generate/backend.h"
#include "src/generate/model_names.h"

namespace moray {
namespace {

constexpr int kThreadsMax = 1024;

class LoadedEngine final : public Engine, public std::enable_shared_from_this<LoadedEngine> {
 public:
  static Result<std::shared_ptr<const Engine>> load(const EngineOptions& options);

  const Tokenizer& tokenizer() const override {
    CHECK(shared_.tokenizer != nullptr, tokenizer_status_.message());
    return *shared_.tokenizer;
  }
  const Status& tokenizer_status() const override { return tokenizer_status_; }
  std::shared_ptr<const Tokenizer> shared_tokenizer() const override { return shared_.tokenizer; }
  const ChatTemplate* chat_template() const override { return template_.get(); }
  const Status& chat_template_status() const override { return template_status_; }
  SamplingOptions default_sampling() const override { return sampling_; }
  const std::vector<TokenId>& end_tokens() const override { return shared_.end_tokens; }
  int64_t context() const override { return backend_.context; }
  int64_t vocab_rows() const override { return source_.config.vocab_rows; }
  std::string model_name() const override { return model_display_name(source_.folder); }
  std::string backend_line() const override { return backend_.line; }
  std::string weights_line() const override;
  std::string kv_line() const override;
  std::string lossy_line() const override;
  std::string prompt_activations() const override { return backend_.prompt_activations; }
  int64_t decode_bytes(int64_t depth) const override { return backend_.decode_bytes(depth); }
  Result<std::unique_ptr<StepReader>> step_reader(int64_t depth) const override {
    return backend_.step_reader(depth);
  }
  std::optional<DeviceFacts> device_facts() const override {
    if (!backend_.device_facts) return std::nullopt;
    return backend_.device_facts();
  }
  Result<std::vector<StageTime>> measure_stages(int64_t depth) const override;
  std::span<const std::string> notes() const override { return backend_.notes; }
  Result<std::unique_ptr<Session>> new_session() const override;

 private:
  Status load_text();
  Status load_end_tokens();
  Status open_backend(const EngineOptions& options);

  ModelSource source_;
  Backend backend_;
  SessionContext shared_;
  Status tokenizer_status_;
  std::shared_ptr<const ChatTemplate> template_;
  Status template_status_;  // why template_ is null
  SamplingOptions sampling_;
};

Status check_ranges(const EngineOptions& options) {
  if (options.threads < 0 || options.threads > kThreadsMax) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("threads: found {}, expected 0 (one a core) to {}", options.threads,
                              kThreadsMax));
  }
  if (options.block_tokens < 0 || options.block_tokens > kBlockTokensMax) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("block_tokens: found {}, expected 0 (what suits) to {}",
                              options.block_tokens, kBlockTokensMax));
  }
  return Status();
}

// "auto", "cpu" or a GPU by its number.
struct DeviceChoice {
  bool may_be_cpu = true;
  bool may_be_gpu = true;
  int ordinal = 0;
};

Result<DeviceChoice> parse_device(const std::string& text) {
  constexpr std::string_view kNumbered = "cuda:";
  if (text == "auto") return DeviceChoice{};
  if (text == "cpu") return DeviceChoice{.may_be_gpu = false};
  if (text == "cuda") return DeviceChoice{.may_be_cpu = false};
  int ordinal = -1;
  if (text.starts_with(kNumbered)) {
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + kNumbered.size(), end, ordinal);
    if (parsed.ec != std::errc() || parsed.ptr != end) ordinal = -1;
  }
  if (ordinal < 0) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("device: found '{}', expected auto, cpu, cuda or cuda:N", text));
  }
  return DeviceChoice{.may_be_cpu = false, .ordinal = ordinal};
}

// The list of generation_config.json; without one, the tokens that end a turn or a text.
Result<std::vector<TokenId>> end_tokens_of(const Checkpoint& checkpoint,
                                           const Tokenizer& tokenizer) {
  std::vector<TokenId> ids = checkpoint.generation().eos_token_ids;
  for (const TokenId id : ids) {
    if (!tokenizer.is_token(id)) {
      return Status(StatusCode::kInvalidFile,
                    fmt::format("{}/generation_config.json: found eos_token_id {}, expected an id "
                                "of tokenizer.json",
                                checkpoint.folder(), id));
    }
  }
  if (!ids.empty()) return ids;
  for (const char* text : {"<|im_end|>", "<|endoftext|>"}) {
    if (const auto id = tokenizer.added_token(text)) ids.push_back(*id);
  }
  return ids;
}

SamplingOptions sampling_of(const GenerationDefaults& defaults) {
  SamplingOptions sampling;
  const bool is_greedy = defaults.do_sample == false;  // only if the file says so
  if (!is_greedy) sampling.temperature = defaults.temperature.value_or(sampling.temperature);
  sampling.top_k = defaults.top_k.value_or(sampling.top_k);
  sampling.top_p = defaults.top_p.value_or(sampling.top_p);
  sampling.min_p = defaults.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = defaults.repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.presence_penalty = defaults.presence_penalty.value_or(sampling.presence_penalty);
  return sampling;
}

Status LoadedEngine::load_text() {
  const std::string& folder = source_.folder;
  ASSIGN_OR_RETURN(shared_.tokenizer, Tokenizer::load(folder));
  const Tokenizer& tokenizer = *shared_.tokenizer;
  if (tokenizer.token_count() > source_.config.vocab_rows) {
    return Status(StatusCode::kInvalidFile,
                  fmt::format("{}/tokenizer.json: found {} tokens, expected at most {} "
                              "(config.json's vocab_size)",
                              folder, tokenizer.token_count(), source_.config.vocab_rows));
  }
  for (TokenId id = 0; id < tokenizer.token_count(); ++id) {
    if (tokenizer.is_token(id)) shared_.sampleable.push_back(id);
  }
  RETURN_IF_ERROR(load_end_tokens());
  Result<std::shared_ptr<const ChatTemplate>> loaded = ChatTemplate::load(folder);
  // Only a conversation needs it: everything else works with a template that cannot be run.
  if (loaded.ok()) {
    template_ = *loaded;
  } else {
    template_status_ = loaded.status();
  }
  return Status();
}

// What generation_config.json says, if there is a checkpoint to say it.
Status LoadedEngine::load_end_tokens() {
  if (source_.checkpoint == nullptr) return Status();
  const Tokenizer& tokenizer = *shared_.tokenizer;
  ASSIGN_OR_RETURN(shared_.end_tokens, end_tokens_of(*source_.checkpoint, tokenizer));
  sampling_ = sampling_of(source_.checkpoint->generation());
  const Status valid = validate(sampling_, tokenizer.token_count());
  if (valid.ok()) return Status();
  return Status(StatusCode::kInvalidFile,
                source_.folder + "/generation_config.json: " + valid.message());
}

Status LoadedEngine::open_backend(const EngineOptions& options) {
  ASSIGN_OR_RETURN(const DeviceChoice choice, parse_device(options.device));
  const bool wants_cpu = options.float32 || !options.cpu_level.empty() || options.on_routing;
  if (wants_cpu && !choice.may_be_cpu) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("device: found {} with {}, expected cpu or auto", options.device,
                              options.float32             ? "FP32 activations"
                              : options.cpu_level.empty() ? "a record of routing"
                                                          : "a CPU instruction level"));
  }
  Status refusal;
  if (choice.may_be_gpu && !wants_cpu) {
    Result<Backend> opened = open_gpu_backend(source_, options, choice.ordinal, shared_.sampleable);
    if (opened.ok()) {
      backend_ = *std::move(opened);
      return Status();
    }
    refusal = opened.status();
    if (!choice.may_be_cpu || refusal.code() == StatusCode::kCancelled) return refusal;
  }
  ASSIGN_OR_RETURN(backend_, open_cpu_backend(source_, options));
  if (!refusal.ok()) backend_.notes.push_back("the CPU computes; " + refusal.message());
  return Status();
}

Result<std::shared_ptr<const Engine>> LoadedEngine::load(const EngineOptions& options) {
  RETURN_IF_ERROR(check_ranges(options));
  const std::shared_ptr<LoadedEngine> engine(new LoadedEngine());
  ModelSource& source = engine->source_;
  source.folder = options.model_folder;
  if (options.random_weights) {
    ASSIGN_OR_RETURN(source.config, read_model_config(source.folder));
  } else {
    ASSIGN_OR_RETURN(source.checkpoint, Checkpoint::open(source.folder));
    source.config = source.checkpoint->config();
  }
  const Status text = engine->load_text();
  if (!text.ok()) {
    if (!options.random_weights || text.code() != StatusCode::kNotFound) return text;
    engine->tokenizer_status_ = text;
    engine->shared_.sampleable.resize(static_cast<size_t>(source.config.vocab_rows));
    std::iota(engine->shared_.sampleable.begin(), engine->shared_.sampleable.end(), 0);
  }
  RETURN_IF_ERROR(engine->open_backend(options));
  return std::shared_ptr<const Engine>(engine);
}

std::string LoadedEngine::weights_line() const {
  const std::string dtype(dtype_name(source_.config.dtype));
  return (source_.config.block_fp8 ? "FP8 128x128 + " + dtype : dtype) +
         (source_.checkpoint == nullptr ? ", random" : "");
}

std::string LoadedEngine::kv_line() const {
  switch (backend_.kv) {
    case KvFormat::kF32:
      return "F32";
    case KvFormat::kBf16:
      return "BF16";
    case KvFormat::kFp8:
      return "FP8";
  }
  return "";
}

std::string LoadedEngine::lossy_line() const {
  const bool is_head = backend_.head == HeadFormat::kFp8;
  const bool is_kv = backend_.kv == KvFormat::kFp8;
  return fmt::format("{}{}{}", is_head ? "lm-head=fp8" : "", is_head && is_kv ? " " : "",
                     is_kv ? "kv-type=fp8" : "");
}

Result<std::vector<StageTime>> LoadedEngine::measure_stages(int64_t depth) const {
  if (backend_.measure_stages) return backend_.measure_stages(depth);
  return Status(StatusCode::kUnsupported, "stages: found the CPU, expected a GPU (--device cuda)");
}

Result<std::unique_ptr<Session>> LoadedEngine::new_session() const {
  ASSIGN_OR_RETURN(StepModel model, backend_.new_model());
  return make_session(std::move(model),
                      std::shared_ptr<const SessionContext>(shared_from_this(), &shared_));
}

}  // namespace

Result<std::shared_ptr<const Engine>> Engine::open(const EngineOptions& options) {
  try {
    return LoadedEngine::load(options);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kExhausted,
                  options.model_folder + ": found no memory left while loading, expected more");
  } catch (const std::system_error& error) {  // what std::thread throws at a limit
    return Status(StatusCode::kExhausted,
                  fmt::format("threads: found '{}', expected to start them", error.what()));
  }
}

}  // namespace moray
