// moray run: continue a text, or answer a message.
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

}  // namespace

Status run_command(const Options& options, Output& output) {
  ASSIGN_OR_RETURN(const std::string text, read_prompt(options.prompt));
  RETURN_IF_ERROR(check_flags(options.sampling));
  ASSIGN_OR_RETURN(const auto engine, open_text_engine(options));
  GenerateOptions generate;
  generate.sampling = apply_flags(engine->default_sampling(), options.sampling);
  generate.max_tokens = options.common.max_tokens.value_or(kRunTokensDefault);
  ASSIGN_OR_RETURN(const auto prompt, prompt_tokens(*engine, options, text));
  return generate_to(*engine, prompt, std::move(generate), options, output);
}

}  // namespace moray
