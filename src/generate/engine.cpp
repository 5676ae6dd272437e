// Engine::open: a model folder becomes something that sessions can be made from.
//
// Invariant: everything that can be wrong with folder, machine or memory has been said when open()
// returns; what follows (a forward pass) cannot fail. The engine's parts are immutable except for
// threads and workspace, which one forward pass at a time uses (a mutex sees to it).
#include "moray/engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>

#include "src/generate/available_memory.h"
#include "src/generate/context_plan.h"
#include "src/generate/model_names.h"
#include "src/generate/read_bandwidth.h"
#include "src/generate/step_model.h"
#include "src/kernels/cpu/dispatch.h"
#include "src/model/model.h"

namespace moray {
namespace {

constexpr int64_t kBlockTokensMax = 4096;
constexpr int kThreadsMax = 1024;

class LoadedEngine final : public Engine, public std::enable_shared_from_this<LoadedEngine> {
 public:
  static Result<std::shared_ptr<const Engine>> load(const EngineOptions& options);

  const Tokenizer& tokenizer() const override { return *shared_.tokenizer; }
  std::shared_ptr<const Tokenizer> shared_tokenizer() const override { return shared_.tokenizer; }
  const ChatTemplate* chat_template() const override { return template_.get(); }
  const Status& chat_template_status() const override { return template_status_; }
  SamplingOptions default_sampling() const override { return sampling_; }
  const std::vector<TokenId>& end_tokens() const override { return shared_.end_tokens; }
  int64_t context() const override { return context_; }
  std::string model_name() const override { return model_display_name(options_.model_folder); }
  std::string backend_line() const override;
  std::string weights_line() const override;
  std::string kv_line() const override { return options_.float32 ? "F32" : "BF16"; }
  int64_t decode_bytes(int64_t depth) const override;
  Result<std::unique_ptr<StepReader>> step_reader(int64_t depth) const override;
  std::span<const std::string> notes() const override { return notes_; }
  Result<std::unique_ptr<Session>> new_session() const override;

 private:
  class Reader;
  explicit LoadedEngine(const EngineOptions& options) : options_(options) {}
  Status load_text(const Checkpoint& checkpoint);
  Status plan(const Checkpoint& checkpoint);
  Precision precision() const {
    return options_.float32 ? Precision::kFloat32 : Precision::kBfloat16;
  }
  void run_forward(State& state, std::span<const TokenId> tokens, int64_t logit_rows,
                   float* logits) const;

  EngineOptions options_;
  const cpu::Kernels* kernels_ = nullptr;
  cpu::Level level_ = cpu::Level::kAvx2;
  std::shared_ptr<const Weights> weights_;
  SessionContext shared_;
  std::shared_ptr<const ChatTemplate> template_;
  Status template_status_;  // why template_ is null
  SamplingOptions sampling_;
  std::vector<std::string> notes_;
  int64_t context_ = 0;
  mutable std::mutex pass_mutex_;  // guards pool_ and workspace_
  mutable std::optional<ThreadPool> pool_;
  mutable std::optional<Workspace> workspace_;
};

Status check_ranges(const EngineOptions& options) {
  if (options.threads < 0 || options.threads > kThreadsMax) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("threads: found {}, expected 0 (one a core) to {}", options.threads,
                              kThreadsMax));
  }
  if (options.block_tokens < 1 || options.block_tokens > kBlockTokensMax) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("block_tokens: found {}, expected 1 to {}", options.block_tokens,
                              kBlockTokensMax));
  }
  return Status();
}

Result<std::optional<cpu::Level>> level_named(const std::string& name) {
  if (name.empty()) return std::optional<cpu::Level>();
  for (const cpu::Level level : {cpu::Level::kAvx2, cpu::Level::kAvx512}) {
    if (name == cpu::level_name(level)) return std::optional<cpu::Level>(level);
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("cpu: found '{}', expected avx2 or avx512", name));
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

// Bytes of the tensors whose name `is_wanted`.
template <typename Wanted>
int64_t tensor_bytes(const Checkpoint& checkpoint, Wanted is_wanted) {
  int64_t bytes = 0;
  for (const std::string_view name : checkpoint.names()) {
    if (is_wanted(name)) bytes += static_cast<int64_t>(checkpoint.find(name)->bytes.size());
  }
  return bytes;
}

Status LoadedEngine::load_text(const Checkpoint& checkpoint) {
  const std::string& folder = checkpoint.folder();
  ASSIGN_OR_RETURN(shared_.tokenizer, Tokenizer::load(folder));
  const Tokenizer& tokenizer = *shared_.tokenizer;
  if (tokenizer.token_count() > checkpoint.config().vocab_rows) {
    return Status(StatusCode::kInvalidFile,
                  fmt::format("{}/tokenizer.json: found {} tokens, expected at most {} "
                              "(config.json's vocab_size)",
                              folder, tokenizer.token_count(), checkpoint.config().vocab_rows));
  }
  for (TokenId id = 0; id < tokenizer.token_count(); ++id) {
    if (tokenizer.is_token(id)) shared_.sampleable.push_back(id);
  }
  ASSIGN_OR_RETURN(shared_.end_tokens, end_tokens_of(checkpoint, tokenizer));
  sampling_ = sampling_of(checkpoint.generation());
  const Status valid = validate(sampling_, tokenizer.token_count());
  if (!valid.ok()) {
    return Status(StatusCode::kInvalidFile, folder + "/generation_config.json: " + valid.message());
  }
  Result<std::shared_ptr<const ChatTemplate>> loaded = ChatTemplate::load(folder);
  // Only a conversation needs it: everything else works with a template that cannot be run.
  if (loaded.ok()) {
    template_ = *loaded;
  } else {
    template_status_ = loaded.status();
  }
  return Status();
}

Status LoadedEngine::plan(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  ContextQuestion question;
  question.requested = options_.context;
  question.max_positions = config.max_positions;
  question.available_bytes = available_memory_bytes();
  question.weight_bytes = tensor_bytes(checkpoint, [](std::string_view) { return true; });
  const auto workspace_bytes = [&](int64_t tokens) {
    return Workspace::bytes_needed(config, options_.block_tokens, tokens, pool_->thread_count());
  };
  const auto logit_bytes = config.vocab_rows * static_cast<int64_t>(sizeof(float));
  question.fixed_bytes = workspace_bytes(1) + logit_bytes;
  question.state_bytes = [&](int64_t tokens) {
    return State::bytes_needed(config, tokens, precision()) + workspace_bytes(tokens) -
           workspace_bytes(1);
  };
  ASSIGN_OR_RETURN(context_, plan_context(question));
  if (options_.context == 0 && context_ < config.max_positions) {
    notes_.push_back(
        fmt::format("context of {} tokens, not the model's {}: its state takes half "
                    "of the memory that is free (another one can be asked for)",
                    context_, config.max_positions));
  }
  return Status();
}

Result<std::shared_ptr<const Engine>> LoadedEngine::load(const EngineOptions& options) {
  RETURN_IF_ERROR(check_ranges(options));
  ASSIGN_OR_RETURN(const std::optional<cpu::Level> level, level_named(options.cpu_level));
  const std::shared_ptr<LoadedEngine> engine(new LoadedEngine(options));
  ASSIGN_OR_RETURN(engine->kernels_, cpu::kernels_for(level));
  ASSIGN_OR_RETURN(const cpu::Level best, cpu::cpu_level());
  engine->level_ = level.value_or(best);
  ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::open(options.model_folder));
  RETURN_IF_ERROR(engine->load_text(*checkpoint));
  engine->pool_.emplace(options.threads);
  RETURN_IF_ERROR(engine->plan(*checkpoint));
  ASSIGN_OR_RETURN(engine->weights_, load_weights(checkpoint, {.progress = options.on_load}));
  const std::span<const std::string> model_notes = notes_of(*engine->weights_);
  engine->notes_.insert(engine->notes_.end(), model_notes.begin(), model_notes.end());
  engine->workspace_.emplace(config_of(*engine->weights_), options.block_tokens, engine->context_,
                             engine->pool_->thread_count());
  engine->options_.on_load = nullptr;
  return std::shared_ptr<const Engine>(engine);
}

std::string LoadedEngine::backend_line() const {
  const char* reason = options_.cpu_level.empty() ? "the best level of this machine" : "as asked";
  const char* products = "";  // AVX2 machines never have them
  if (level_ == cpu::Level::kAvx512) {
    products = cpu::has_bf16_products(*kernels_) ? ", with BF16 products"
                                                 : ", without BF16 products, which this CPU lacks";
  }
  return fmt::format("cpu {}, {} thread{} ({}{})", cpu::level_name(level_), pool_->thread_count(),
                     pool_->thread_count() == 1 ? "" : "s", reason, products);
}

std::string LoadedEngine::weights_line() const {
  const ModelConfig& config = config_of(*weights_);
  const std::string dtype(dtype_name(config.dtype));
  return config.block_fp8 ? "FP8 128x128 + " + dtype : dtype;
}

int64_t LoadedEngine::decode_bytes(int64_t depth) const {
  return decode_weight_bytes(*weights_) + decode_state_bytes(*weights_, depth, precision());
}

class LoadedEngine::Reader final : public StepReader {
 public:
  Reader(std::shared_ptr<const LoadedEngine> engine, int64_t state_bytes)
      : engine_(std::move(engine)), state_(state_bytes) {}
  double read_seconds() override {
    auto pieces = decode_weight_pieces(*engine_->weights_, turn_++);
    pieces.push_back(state_.bytes());
    const ReadPlan plan(pieces);
    const std::lock_guard<std::mutex> lock(engine_->pass_mutex_);
    return plan.read(*engine_->pool_);
  }

 private:
  std::shared_ptr<const LoadedEngine> engine_;
  TouchedBytes state_;
  uint64_t turn_ = 0;
};

Result<std::unique_ptr<StepReader>> LoadedEngine::step_reader(int64_t depth) const {
  const int64_t state_bytes = decode_state_bytes(*weights_, depth, precision());
  try {
    return std::unique_ptr<StepReader>(std::make_unique<Reader>(shared_from_this(), state_bytes));
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kExhausted,
                  fmt::format("bench: found no memory left, expected {} MiB in place of the state",
                              state_bytes >> 20));
  }
}

void LoadedEngine::run_forward(State& state, std::span<const TokenId> tokens, int64_t logit_rows,
                               float* logits) const {
  const std::lock_guard<std::mutex> lock(pass_mutex_);
  forward(*weights_, cpu::Context(*pool_, *kernels_), *workspace_,
          {.tokens = tokens,
           .state = &state,
           .precision = precision(),
           .logit_rows = logit_rows,
           .logits = logits});
}

Result<std::unique_ptr<Session>> LoadedEngine::new_session() const {
  const ModelConfig& config = config_of(*weights_);
  const int64_t bytes = State::bytes_needed(config, context_, precision());
  const int64_t available = available_memory_bytes();
  if (bytes > available) {
    return Status(StatusCode::kExhausted,
                  fmt::format("session: found {} MiB of memory, expected {} MiB for {} tokens",
                              available >> 20, bytes >> 20, context_));
  }
  const auto engine = shared_from_this();
  const auto state = std::make_shared<State>(config, context_, precision());
  StepModel model;
  model.vocab_rows = config.vocab_rows;
  model.capacity = context_;
  model.block_tokens = options_.block_tokens;
  model.forward = [engine, state](std::span<const TokenId> tokens, int64_t logit_rows,
                                  float* logits) {
    engine->run_forward(*state, tokens, logit_rows, logits);
  };
  model.clear = [state] { state->rewind(0); };
  return make_session(std::move(model),
                      std::shared_ptr<const SessionContext>(engine, &engine->shared_));
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
