// A GPU as a backend: everything resident in its memory.
//
// Invariant: the memory plan is made from config.json alone and held against what is free before
// anything large is allocated; after open() nothing allocates device or pinned memory. The state of
// one session is allocated with the engine, so one session lives at a time.
#include <fmt/core.h>

#include <atomic>

#include "src/generate/backend.h"
#include "src/generate/gpu_plan.h"
#include "src/gpu/device.h"
#include "src/gpu/stream.h"
#include "src/model/blank_weights.h"
#include "src/model/fp8_head.h"
#include "src/model/gpu_check.h"
#include "src/model/gpu_forward.h"
#include "src/model/model.h"

namespace moray {
namespace {

// Everything that the backend's functions share.
struct GpuEngine {
  std::shared_ptr<gpu::Device> device;
  std::shared_ptr<const Weights> weights;  // the host's; null for random ones
  std::shared_ptr<const GpuModel> model;
  std::unique_ptr<GpuForward> forward;
  std::atomic<bool> is_in_use = false;  // by a session
  GpuPlan plan;
  int64_t free_before = 0;  // device memory before the engine took any
};

// Gives the one state back when its session's functions are gone.
struct Lease {
  explicit Lease(std::shared_ptr<GpuEngine> held) : engine(std::move(held)) {}
  Lease(const Lease&) = delete;
  ~Lease() { engine->is_in_use.store(false); }
  std::shared_ptr<GpuEngine> engine;
};

Result<StepModel> new_model(const std::shared_ptr<GpuEngine>& engine) {
  if (engine->is_in_use.exchange(true)) {
    return Status(StatusCode::kExhausted,
                  "session: found one on this GPU already, expected it to be gone (a GPU engine "
                  "holds the state of one)");
  }
  const auto lease = std::make_shared<Lease>(engine);
  engine->forward->state().rewind(0);
  StepModel step;
  step.vocab_rows = engine->model->config.vocab_rows;
  step.capacity = engine->plan.context;
  step.block_tokens = engine->plan.block_tokens;
  step.block_grid = kDeltaChunk;
  step.forward = [lease](std::span<const TokenId> tokens, int64_t rows, float* logits) {
    return lease->engine->forward->forward(tokens, rows, logits);
  };
  step.clear = [lease] { lease->engine->forward->state().rewind(0); };
  step.decode_greedily = [lease](TokenId first, int64_t count, float* logits,
                                 const std::function<bool(TokenId)>& take) {
    return lease->engine->forward->decode_greedily(first, count, logits, take);
  };
  return step;
}

// Bytes of a step at `depth`: those of the weights by the host's count, and of the state.
int64_t decode_bytes(const Weights& shapes, KvFormat kv, int64_t depth) {
  return decode_weight_bytes(shapes) + decode_state_bytes(shapes, depth, kv);
}

// Reads as many bytes of the weights as a step reads in all.
class GpuStepReader final : public StepReader {
 public:
  GpuStepReader(std::shared_ptr<GpuEngine> engine, int64_t bytes)
      : engine_(std::move(engine)), bytes_(bytes) {}
  Result<double> read_seconds() override { return engine_->forward->measure_read_seconds(bytes_); }

 private:
  std::shared_ptr<GpuEngine> engine_;
  int64_t bytes_;
};

// A function that needs the state for itself: measurements.
template <typename Body>
auto alone(GpuEngine& engine, Body body) -> decltype(body(*engine.forward)) {
  if (engine.is_in_use.exchange(true)) {
    return Status(StatusCode::kExhausted, "measurement: found a session in use, expected none");
  }
  engine.forward->state().rewind(0);
  auto result = body(*engine.forward);
  engine.is_in_use.store(false);
  return result;
}

Result<std::vector<StageTime>> measure_stages(GpuEngine& engine, int64_t depth) {
  if (depth + 2 > engine.plan.context) {
    return Status(StatusCode::kExhausted,
                  fmt::format("stages: found depth {}, expected at most {} (the context)", depth,
                              engine.plan.context - 2));
  }
  return alone(engine, [depth](GpuForward& forward) -> Result<std::vector<StageTime>> {
    const std::vector<TokenId> filler(static_cast<size_t>(forward.block_tokens()), 1);
    for (int64_t at = 0; at < depth; at += forward.block_tokens()) {
      const int64_t size = std::min(forward.block_tokens(), depth - at);
      RETURN_IF_ERROR(forward.forward({filler.data(), static_cast<size_t>(size)}, 0, nullptr));
    }
    ASSIGN_OR_RETURN(const auto times, forward.measure_stages());
    std::vector<StageTime> stages;
    for (const GpuStageTime& time : times) {
      stages.push_back({time.name, time.launches, time.seconds, time.bytes, time.operations});
    }
    return stages;
  });
}

// Weights and kernels; which of them takes long is what on_load shows.
Status load_model(GpuEngine& engine, const ModelSource& source, const EngineOptions& options,
                  const Weights& shapes) {
  auto model = std::make_shared<GpuModel>();
  model->device = engine.device;
  model->config = shapes.config;
  ASSIGN_OR_RETURN(GpuFormats formats, gpu_formats(shapes));
  formats.kv_fp8 = options.fp8_kv || options.fast;
  ASSIGN_OR_RETURN(model->kernels,
                   build_gpu_kernels(engine.device, shapes.config, formats, nullptr));
  ASSIGN_OR_RETURN(engine.plan, plan_gpu(shapes, model->kernels, options, engine.free_before));
  ASSIGN_OR_RETURN(const auto stream, gpu::Stream::create(engine.device));
  if (source.checkpoint == nullptr) {
    ASSIGN_OR_RETURN(model->weights, random_gpu_weights(engine.device, *stream, *model->kernels.set,
                                                        shapes.config, wanted_head(options),
                                                        *options.random_weights, options.on_load));
  } else {
    ASSIGN_OR_RETURN(model->weights,
                     upload_weights(engine.device, *stream, shapes, options.on_load));
  }
  engine.model = std::move(model);
  return Status();
}

// New kernels are held against each other before they are believed: FP8 activations are left out if
// they alone are wrong, otherwise the GPU is.
Status check_kernels(GpuEngine& engine, std::vector<std::string>* notes) {
  ASSIGN_OR_RETURN(const GpuCheck check,
                   check_paths(*engine.forward, engine.model->config.vocab_rows));
  if (!(check.block_kl <= kGpuCheckKlMax)) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("cuda: found that prompts and decode steps disagree by {:.2g} nats, "
                              "expected at most {} (a kernel is wrong on this card)",
                              check.block_kl, kGpuCheckKlMax));
  }
  if (check.w8a8_kl <= kGpuCheckKlMax) return Status();
  engine.forward->use_w8a8(false);
  notes->push_back(
      fmt::format("prompts are read with BF16 activations: with FP8 ones they are off "
                  "by {:.2g} nats on this card",
                  check.w8a8_kl));
  return Status();
}

}  // namespace

Result<Backend> open_gpu_backend(const ModelSource& source, const EngineOptions& options,
                                 int ordinal, std::span<const TokenId> sampleable) {
  const auto engine = std::make_shared<GpuEngine>();
  // Random weights measure only speed, which needs no proof of the family.
  if (source.checkpoint != nullptr) RETURN_IF_ERROR(check_gpu_family(source.config));
  RETURN_IF_ERROR(check_gpu_limits(source.config));
  ASSIGN_OR_RETURN(engine->device, gpu::Device::open(ordinal));
  engine->free_before = engine->device->free_bytes();
  Backend backend;
  backend.head = wanted_head(options);
  // Shapes to count bytes with: the checkpoint's own, or a config's.
  std::shared_ptr<const Weights> shapes;
  if (source.checkpoint != nullptr) {
    RETURN_IF_ERROR(check_gpu_room(source.config, backend.head, engine->free_before));
    LoadOptions load{.is_read = false};
    ASSIGN_OR_RETURN(shapes, load_weights(source.checkpoint, load));
    const std::span<const std::string> notes = notes_of(*shapes);
    backend.notes.assign(notes.begin(), notes.end());
    if (backend.head == HeadFormat::kFp8) {
      ThreadPool threads(options.threads);
      shapes = with_fp8_head(*shapes, threads);
    }
  } else {
    shapes = std::make_shared<Weights>(blank_weights(source.config, backend.head, nullptr));
    backend.notes.push_back(
        fmt::format("weights: random, seed {}; for measurements only", *options.random_weights));
  }
  RETURN_IF_ERROR(load_model(*engine, source, options, *shapes));
  ASSIGN_OR_RETURN(engine->forward,
                   GpuForward::create(engine->model, {.capacity = engine->plan.context,
                                                      .block_tokens = engine->plan.block_tokens,
                                                      .sampleable = sampleable}));
  const gpu::DeviceInfo& info = engine->device->info();
  const gpu::BuildReport& report = engine->model->kernels.set->report();
  // Made-up weights turn roundings into other routes, so that nothing can be told by them.
  if (report.compiled > 0 && source.checkpoint != nullptr) {
    RETURN_IF_ERROR(check_kernels(*engine, &backend.notes));
  }
  const bool has_w8a8 = engine->model->kernels.has_w8a8 && engine->forward->uses_w8a8();
  backend.prompt_activations = has_w8a8 ? "FP8" : "BF16";
  backend.line = fmt::format("cuda:{} {} (sm_{}{}), {}", info.ordinal, info.name, info.arch(),
                             info.arch() >= 90 ? "a" : "", report.line());
  if (!report.cache_trouble.empty()) backend.notes.push_back(report.cache_trouble);
  backend.notes.insert(backend.notes.end(), engine->plan.notes.begin(), engine->plan.notes.end());
  backend.kv = engine->model->kernels.kv();
  backend.context = engine->plan.context;
  backend.decode_bytes = [shapes, kv = backend.kv](int64_t depth) {
    return decode_bytes(*shapes, kv, depth);
  };
  backend.step_reader = [engine, shapes,
                         kv = backend.kv](int64_t depth) -> Result<std::unique_ptr<StepReader>> {
    return std::unique_ptr<StepReader>(
        std::make_unique<GpuStepReader>(engine, decode_bytes(*shapes, kv, depth)));
  };
  backend.measure_stages = [engine](int64_t depth) { return measure_stages(*engine, depth); };
  backend.new_model = [engine] { return new_model(engine); };
  backend.device_facts = [engine] {
    return DeviceFacts{engine->device->info().name, engine->device->clocks_line(),
                       engine->device->driver_line(),
                       engine->free_before - engine->device->free_bytes()};
  };
  return backend;
}

}  // namespace moray
