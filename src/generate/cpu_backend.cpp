// The CPU as a backend: threads, kernels of one instruction level, weights in memory.
//
// Invariant: the parts are immutable except for threads and workspace, which one forward pass at a
// time uses (a mutex sees to it).
#include <fmt/core.h>

#include <mutex>
#include <new>
#include <optional>

#include "src/generate/available_memory.h"
#include "src/generate/backend.h"
#include "src/generate/context_plan.h"
#include "src/generate/read_bandwidth.h"
#include "src/kernels/cpu/dispatch.h"
#include "src/model/blank_weights.h"
#include "src/model/fp8_head.h"
#include "src/model/model.h"
#include "src/model/random_weights.h"

namespace moray {
namespace {

constexpr int64_t kDefaultBlockTokens = 256;

// Everything that the backend's functions share.
struct CpuModel {
  const cpu::Kernels* kernels = nullptr;
  cpu::Level level = cpu::Level::kAvx2;
  bool is_level_asked_for = false;
  Precision precision = Precision::kBfloat16;
  int64_t block_tokens = kDefaultBlockTokens;
  int64_t context = 0;
  std::shared_ptr<const Weights> weights;
  RoutingObserver on_routing;
  std::mutex pass_mutex;  // guards pool and workspace
  std::optional<ThreadPool> pool;
  std::optional<Workspace> workspace;
};

Result<std::optional<cpu::Level>> level_named(const std::string& name) {
  if (name.empty()) return std::optional<cpu::Level>();
  for (const cpu::Level level : {cpu::Level::kAvx2, cpu::Level::kAvx512}) {
    if (name == cpu::level_name(level)) return std::optional<cpu::Level>(level);
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("cpu: found '{}', expected avx2 or avx512", name));
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

Result<int64_t> plan(const ModelSource& source, const EngineOptions& options, const CpuModel& model,
                     std::vector<std::string>* notes) {
  const ModelConfig& config = source.config;
  ContextQuestion question;
  question.requested = options.context;
  question.max_positions = config.max_positions;
  question.available_bytes = available_memory_bytes();
  question.weight_bytes =
      source.checkpoint ? tensor_bytes(*source.checkpoint, [](std::string_view) { return true; })
                        : blank_weights_bytes(config, wanted_head(options));
  if (source.checkpoint && wanted_head(options) == HeadFormat::kFp8) {
    question.weight_bytes += fp8_head_bytes(config);
  }
  const auto workspace_bytes = [&](int64_t tokens) {
    return Workspace::bytes_needed(config, model.block_tokens, tokens, model.pool->thread_count());
  };
  const auto logit_bytes = config.vocab_rows * static_cast<int64_t>(sizeof(float));
  question.fixed_bytes = workspace_bytes(1) + logit_bytes;
  question.state_bytes = [&](int64_t tokens) {
    return State::bytes_needed(config, tokens, model.precision) + workspace_bytes(tokens) -
           workspace_bytes(1);
  };
  ASSIGN_OR_RETURN(const int64_t context, plan_context(question));
  if (options.context == 0 && context < config.max_positions) {
    notes->push_back(
        fmt::format("context of {} tokens, not the model's {}: its state takes half "
                    "of the memory that is free (another one can be asked for)",
                    context, config.max_positions));
  }
  return context;
}

std::string describe(const CpuModel& model) {
  const char* reason = model.is_level_asked_for ? "as asked" : "the best level of this machine";
  const char* products = "";  // AVX2 machines never have them
  if (model.level == cpu::Level::kAvx512) {
    products = cpu::has_bf16_products(*model.kernels)
                   ? ", with BF16 products"
                   : ", without BF16 products, which this CPU lacks";
  }
  const int threads = model.pool->thread_count();
  return fmt::format("cpu {}, {} thread{} ({}{})", cpu::level_name(model.level), threads,
                     threads == 1 ? "" : "s", reason, products);
}

int64_t decode_bytes(const CpuModel& model, int64_t depth) {
  return decode_weight_bytes(*model.weights) +
         decode_state_bytes(*model.weights, depth, kv_format(model.precision));
}

class CpuStepReader final : public StepReader {
 public:
  CpuStepReader(std::shared_ptr<CpuModel> model, int64_t state_bytes)
      : model_(std::move(model)), state_(state_bytes) {}
  Result<double> read_seconds() override {
    auto pieces = decode_weight_pieces(*model_->weights, turn_++);
    pieces.push_back(state_.bytes());
    const ReadPlan plan(pieces);
    const std::lock_guard<std::mutex> lock(model_->pass_mutex);
    return plan.read(*model_->pool);
  }

 private:
  std::shared_ptr<CpuModel> model_;
  TouchedBytes state_;
  uint64_t turn_ = 0;
};

Result<std::unique_ptr<StepReader>> step_reader(const std::shared_ptr<CpuModel>& model,
                                                int64_t depth) {
  const int64_t state_bytes =
      decode_state_bytes(*model->weights, depth, kv_format(model->precision));
  try {
    return std::unique_ptr<StepReader>(std::make_unique<CpuStepReader>(model, state_bytes));
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kExhausted,
                  fmt::format("bench: found no memory left, expected {} MiB in place of the state",
                              state_bytes >> 20));
  }
}

Result<StepModel> new_model(const std::shared_ptr<CpuModel>& model) {
  const ModelConfig& config = config_of(*model->weights);
  const int64_t bytes = State::bytes_needed(config, model->context, model->precision);
  const int64_t available = available_memory_bytes();
  if (bytes > available) {
    return Status(StatusCode::kExhausted,
                  fmt::format("session: found {} MiB of memory, expected {} MiB for {} tokens",
                              available >> 20, bytes >> 20, model->context));
  }
  const auto state = std::make_shared<State>(config, model->context, model->precision);
  StepModel step;
  step.vocab_rows = config.vocab_rows;
  step.capacity = model->context;
  step.block_tokens = model->block_tokens;
  step.forward = [model, state](std::span<const TokenId> tokens, int64_t logit_rows,
                                float* logits) {
    const std::lock_guard<std::mutex> lock(model->pass_mutex);
    forward(*model->weights, cpu::Context(*model->pool, *model->kernels), *model->workspace,
            {.tokens = tokens,
             .state = state.get(),
             .precision = model->precision,
             .logit_rows = logit_rows,
             .logits = logits,
             .on_routing = &model->on_routing});
    return Status();
  };
  step.clear = [state] { state->rewind(0); };
  return step;
}

}  // namespace

Result<Backend> open_cpu_backend(const ModelSource& source, const EngineOptions& options) {
  if (options.fp8_kv) {
    return Status(StatusCode::kUnsupported,
                  "kv-type: found fp8 on the CPU, expected bf16 (only a GPU keeps FP8 keys and "
                  "values)");
  }
  ASSIGN_OR_RETURN(const std::optional<cpu::Level> level, level_named(options.cpu_level));
  const auto model = std::make_shared<CpuModel>();
  ASSIGN_OR_RETURN(model->kernels, cpu::kernels_for(level));
  ASSIGN_OR_RETURN(const cpu::Level best, cpu::cpu_level());
  model->level = level.value_or(best);
  model->is_level_asked_for = level.has_value();
  model->precision = options.float32 ? Precision::kFloat32 : Precision::kBfloat16;
  if (options.block_tokens > 0) model->block_tokens = options.block_tokens;
  model->on_routing = options.on_routing;
  model->pool.emplace(options.threads);
  Backend backend;
  ASSIGN_OR_RETURN(model->context, plan(source, options, *model, &backend.notes));
  backend.head = wanted_head(options);
  if (source.checkpoint != nullptr) {
    ASSIGN_OR_RETURN(model->weights,
                     load_weights(source.checkpoint, {.progress = options.on_load}));
    if (backend.head == HeadFormat::kFp8) {
      model->weights = with_fp8_head(*model->weights, *model->pool);
    }
  } else {
    ASSIGN_OR_RETURN(model->weights,
                     random_weights(source.config, backend.head, *options.random_weights,
                                    *model->pool, options.on_load));
  }
  if (options.fast) backend.notes.push_back("fast: FP8 head; keys and values stay as they are");
  const std::span<const std::string> model_notes = notes_of(*model->weights);
  backend.notes.insert(backend.notes.end(), model_notes.begin(), model_notes.end());
  model->workspace.emplace(config_of(*model->weights), model->block_tokens, model->context,
                           model->pool->thread_count());
  backend.line = describe(*model);
  backend.prompt_activations = options.float32 ? "F32" : "BF16";
  backend.kv = kv_format(model->precision);
  backend.context = model->context;
  backend.decode_bytes = [model](int64_t depth) { return decode_bytes(*model, depth); };
  backend.step_reader = [model](int64_t depth) { return step_reader(model, depth); };
  backend.new_model = [model] { return new_model(model); };
  return backend;
}

}  // namespace moray
