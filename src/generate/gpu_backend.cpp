// A GPU as a backend: everything resident in its memory.
//
// Invariant: the memory plan is made from config.json alone and held against what is free before
// anything large is allocated; after open() nothing allocates device or pinned memory. The state of
// one session is allocated with the engine, so one session lives at a time.
#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <optional>

#include "src/generate/backend.h"
#include "src/generate/gpu_plan.h"
#include "src/gpu/device.h"
#include "src/gpu/stream.h"
#include "src/model/blank_weights.h"
#include "src/model/fp8_head.h"
#include "src/model/gpu_check_record.h"
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

// Shapes to count bytes and choose kernels with: the checkpoint's own, or a config's.
Result<std::shared_ptr<const Weights>> shapes_of(const ModelSource& source, HeadFormat head) {
  if (source.checkpoint != nullptr) return load_weights(source.checkpoint, {.is_read = false});
  return std::shared_ptr<const Weights>(
      std::make_shared<Weights>(blank_weights(source.config, head, nullptr)));
}

// What is known or, for a card, a driver or kernels that are new, found out about the kernels.
// Those that are wrong are taken out, with a line each; the rest of a line says how long the check
// took.
Status check_kernels(const GpuEngine& engine, GpuKernels& kernels, std::vector<std::string>* notes,
                     std::string* line) {
  const gpu::Device& device = *engine.device;
  const GpuCheckRecord record(gpu::cache_folder(gpu::read_environment()),
                              device.identity() + " " + device.driver_line(),
                              kernels.set->report().identity);
  std::optional<std::vector<KernelFault>> faults = record.load();
  if (!faults) {
    const auto start = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(const auto stream, gpu::Stream::create(engine.device));
    ASSIGN_OR_RETURN(const auto checked, check_gpu_kernels(engine.device, *stream, kernels, {}));
    faults = faults_of(checked);
    const Status kept = record.store(*faults);
    if (!kept.ok()) notes->push_back("the kernels will be checked again: " + kept.message());
    *line = fmt::format(
        ", checked in {:.1f} s",
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  if (kernels.constants.kv_fp8) {
    notes->push_back("attention over FP8 keys and values has no check of its own at a first start");
  }
  const GpuPaths paths =
      choose_paths(*faults, kernels.has_w8a8, bool(kernels.attention.prefill_wgmma));
  for (const KernelFault& fault : *faults) {
    if (!paths.steps && fault.group == KernelGroup::kSteps) {
      return Status(
          StatusCode::kUnsupported,
          fmt::format("cuda: found that {}, expected its oracle's values", describe(fault, paths)));
    }
    notes->push_back(describe(fault, paths));
  }
  keep_paths(paths, kernels);
  return Status();
}

// Weights and kernels; which of them takes long is what on_load shows.
Status load_model(GpuEngine& engine, const ModelSource& source, const EngineOptions& options,
                  const Weights& shapes, Backend& backend) {
  auto model = std::make_shared<GpuModel>();
  model->device = engine.device;
  model->config = shapes.config;
  ASSIGN_OR_RETURN(GpuFormats formats, gpu_formats(shapes));
  formats.kv_fp8 = options.fp8_kv || options.fast;
  ASSIGN_OR_RETURN(model->kernels,
                   build_gpu_kernels(engine.device, shapes.config, formats, nullptr));
  const gpu::DeviceInfo& info = engine.device->info();
  const gpu::BuildReport& report = model->kernels.set->report();
  backend.line = fmt::format("cuda:{} {} (sm_{}{}), {}", info.ordinal, info.name, info.arch(),
                             info.arch() >= 90 ? "a" : "", report.line());
  if (!report.cache_trouble.empty()) backend.notes.push_back(report.cache_trouble);
  std::string check_line;
  RETURN_IF_ERROR(check_kernels(engine, model->kernels, &backend.notes, &check_line));
  backend.line += check_line;
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

}  // namespace

Result<std::vector<KernelReport>> check_gpu_kernels_at_length(const ModelSource& source,
                                                              int ordinal,
                                                              std::span<const uint64_t> seeds) {
  RETURN_IF_ERROR(check_gpu_limits(source.config));
  ASSIGN_OR_RETURN(const auto device, gpu::Device::open(ordinal));
  ASSIGN_OR_RETURN(const auto shapes, shapes_of(source, HeadFormat::kPublished));
  ASSIGN_OR_RETURN(const GpuFormats formats, gpu_formats(*shapes));
  ASSIGN_OR_RETURN(const GpuKernels kernels,
                   build_gpu_kernels(device, source.config, formats, nullptr));
  ASSIGN_OR_RETURN(const auto stream, gpu::Stream::create(device));
  std::vector<KernelReport> reports;
  for (const uint64_t seed : seeds) {
    ASSIGN_OR_RETURN(const auto checked,
                     check_gpu_kernels(device, *stream, kernels,
                                       {.extent = check::Extent::kAtLength, .seed = seed}));
    for (size_t i = 0; i < checked.size(); ++i) {
      const check::Finding& found = checked[i].finding;
      if (i == reports.size()) reports.emplace_back().kernel = found.kernel;
      KernelReport& report = reports[i];
      report.cases += found.cases;
      report.elements += found.elements;
      if (!report.where.empty() && !(found.ratio > report.ratio)) continue;
      report.error = found.error;
      report.bound = found.bound;
      report.ratio = found.ratio;
      report.where = fmt::format("{}, seed {}", found.where, seed);
    }
  }
  return reports;
}

Result<Backend> open_gpu_backend(const ModelSource& source, const EngineOptions& options,
                                 int ordinal, std::span<const TokenId> sampleable) {
  const auto engine = std::make_shared<GpuEngine>();
  RETURN_IF_ERROR(check_gpu_limits(source.config));
  ASSIGN_OR_RETURN(engine->device, gpu::Device::open(ordinal));
  engine->free_before = engine->device->free_bytes();
  Backend backend;
  backend.head = wanted_head(options);
  if (source.checkpoint != nullptr) {
    RETURN_IF_ERROR(check_gpu_room(source.config, backend.head, engine->free_before));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const Weights> shapes, shapes_of(source, backend.head));
  if (source.checkpoint != nullptr) {
    const std::span<const std::string> notes = notes_of(*shapes);
    backend.notes.assign(notes.begin(), notes.end());
    if (backend.head == HeadFormat::kFp8) {
      ThreadPool threads(options.threads);
      shapes = with_fp8_head(*shapes, threads);
    }
  } else {
    backend.notes.push_back(
        fmt::format("weights: random, seed {}; for measurements only", *options.random_weights));
  }
  RETURN_IF_ERROR(load_model(*engine, source, options, *shapes, backend));
  ASSIGN_OR_RETURN(engine->forward,
                   GpuForward::create(engine->model, {.capacity = engine->plan.context,
                                                      .block_tokens = engine->plan.block_tokens,
                                                      .sampleable = sampleable}));
  const bool has_w8a8 = engine->model->kernels.has_w8a8 && engine->model->kernels.has_blocks;
  backend.prompt_activations = has_w8a8 ? "FP8" : "BF16";
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
