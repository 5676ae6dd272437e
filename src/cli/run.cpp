// moray run: continue a text, or answer a message.
#include <span>
#include <utility>

#include "moray/tools.h"
#include "src/cli/command.h"
#include "src/cli/generation.h"
#include "src/cli/input.h"
#include "src/cli/model_choice.h"

namespace moray {
namespace {

Result<std::vector<TokenId>> prompt_tokens(const Engine& engine, const Options& options,
                                           const std::string& text) {
  if (!options.is_chat) {
    return engine.tokenizer().encode(text, options.prompt.allows_control_tokens
                                               ? ControlTokens::kAllow
                                               : ControlTokens::kAsText);
  }
  if (engine.chat_template() == nullptr) {
    const Status& reason = engine.chat_template_status();
    if (reason.code() != StatusCode::kNotFound) return reason;
    return Status(StatusCode::kUnsupported,
                  engine.model_name() + ": found no chat template, expected one for --chat");
  }
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system, ""});
  messages.push_back({"user", text, ""});
  return engine.chat_template()->render(engine.tokenizer(), messages,
                                        {.enable_thinking = options.is_thinking});
}

// Gathers a trace, a token's layers together, from passes that come a layer at a time.
class RoutingRecorder {
 public:
  explicit RoutingRecorder(const ModelInfo& model) {
    trace_.layers = model.layers;
    trace_.experts = model.experts;
    trace_.top_k = model.top_k;
  }
  void see(int64_t layer, std::span<const int32_t> ids, std::span<const float> weights) {
    const auto row = static_cast<size_t>(trace_.top_k);
    const auto stride = row * static_cast<size_t>(trace_.layers);
    if (layer == 0) {
      begin_ = trace_.ids.size();
      trace_.ids.resize(begin_ + ids.size() * static_cast<size_t>(trace_.layers));
      trace_.weights.resize(trace_.ids.size());
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t at = begin_ + i / row * stride + static_cast<size_t>(layer) * row + i % row;
      trace_.ids[at] = static_cast<uint16_t>(ids[i]);
      trace_.weights[at] = weights[i];
    }
  }
  const RoutingTrace& trace() const { return trace_; }

 private:
  RoutingTrace trace_;
  size_t begin_ = 0;  // of the pass at hand
};

Status answer(const Options& options, const std::string& text, RoutingObserver on_routing,
              Output& output) {
  ASSIGN_OR_RETURN(const auto engine, open_text_engine(options, std::move(on_routing)));
  GenerateOptions generate;
  generate.sampling = apply_flags(engine->default_sampling(), options.sampling);
  generate.max_tokens = options.common.max_tokens.value_or(kRunTokensDefault);
  ASSIGN_OR_RETURN(const auto prompt, prompt_tokens(*engine, options, text));
  return generate_to(*engine, prompt, std::move(generate), options, output);
}

}  // namespace

Status run_command(const Options& options, Output& output) {
  ASSIGN_OR_RETURN(const std::string text, read_prompt(options.prompt));
  RETURN_IF_ERROR(check_flags(options.sampling));
  if (options.routing_file.empty()) return answer(options, text, {}, output);
  RETURN_IF_ERROR(check_routing_path(options.routing_file));
  ASSIGN_OR_RETURN(const std::string folder, find_model(options));
  ASSIGN_OR_RETURN(const ModelInfo model, model_info(folder));
  RoutingRecorder recorder(model);
  const Status status = answer(
      options, text,
      [&recorder](int64_t layer, std::span<const int32_t> ids, std::span<const float> weights) {
        recorder.see(layer, ids, weights);
      },
      output);
  // An interrupted answer's routing is as true as a whole one's.
  if (!status.ok() && status.code() != StatusCode::kCancelled) return status;
  RETURN_IF_ERROR(write_routing_trace(recorder.trace(), options.routing_file));
  return status;
}

}  // namespace moray
