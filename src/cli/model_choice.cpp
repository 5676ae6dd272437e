#include "src/cli/model_choice.h"

#include <utility>

#include "src/cli/interrupt.h"
#include "src/cli/progress.h"

namespace moray {

Result<std::string> find_model(const Options& options) {
  const std::string& typed = options.common.model;
  return resolve_model(typed.empty() ? kShippedModel : typed, options.places);
}

Result<std::shared_ptr<const Engine>> open_engine(const Options& options,
                                                  RoutingObserver on_routing) {
  const CommonOptions& common = options.common;
  ASSIGN_OR_RETURN(const std::string folder, find_model(options));
  Progress progress("loading", ProgressUnit::kBytes, !common.is_quiet);
  EngineOptions engine_options;
  engine_options.model_folder = folder;
  engine_options.threads = static_cast<int>(common.threads);
  engine_options.context = common.context;
  engine_options.float32 = common.is_float32;
  engine_options.fp8_head = common.has_fp8_head;
  engine_options.fp8_kv = common.has_fp8_kv;
  engine_options.fast = common.is_fast;
  engine_options.cpu_level = common.cpu_level;
  engine_options.device = common.device;
  engine_options.random_weights = common.random_weights;
  engine_options.on_routing = std::move(on_routing);
  engine_options.on_load = [&progress](int64_t done, int64_t total) {
    progress.update(done, total);
    return !is_interrupted();
  };
  return Engine::open(engine_options);
}

Result<std::shared_ptr<const Engine>> open_text_engine(const Options& options,
                                                       RoutingObserver on_routing) {
  ASSIGN_OR_RETURN(auto engine, open_engine(options, std::move(on_routing)));
  const Status& tokenizer = engine->tokenizer_status();
  if (tokenizer.ok()) return engine;
  return Status(tokenizer.code(),
                tokenizer.message() + " (a model without a tokenizer can only be measured: bench)");
}

}  // namespace moray
