// moray complete: fill in the middle. The model sees what is before and after the place, in the
// order prefix, suffix, middle that the published fill-in-the-middle models are trained on:
//   <|fim_prefix|> before <|fim_suffix|> after <|fim_middle|>
// and its answer is the insertion. The file's text can never become a control token.
#include <array>

#include "src/cli/command.h"
#include "src/cli/generation.h"
#include "src/cli/input.h"
#include "src/cli/model_choice.h"
#include "src/cli/text_place.h"

namespace moray {
namespace {

// What ends an insertion besides the model's own end tokens: another hole, another file, or the end
// of a text or turn. The list of the Qwen coder models' documentation.
constexpr std::array kStopTokens = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_pad|>",
                                    "<|repo_name|>",  "<|file_sep|>",   "<|endoftext|>",
                                    "<|im_end|>"};

Result<TokenId> control_token(const Engine& engine, const char* text) {
  const auto id = engine.tokenizer().added_token(text);
  if (id) return *id;
  return Status(StatusCode::kUnsupported, engine.model_name() + ": found no token " + text +
                                              ", expected a model trained to fill in the middle");
}

Result<std::vector<TokenId>> middle_prompt(const Engine& engine, std::string_view before,
                                           std::string_view after) {
  ASSIGN_OR_RETURN(const TokenId prefix_token, control_token(engine, "<|fim_prefix|>"));
  ASSIGN_OR_RETURN(const TokenId suffix_token, control_token(engine, "<|fim_suffix|>"));
  ASSIGN_OR_RETURN(const TokenId middle_token, control_token(engine, "<|fim_middle|>"));
  const Tokenizer& tokenizer = engine.tokenizer();
  ASSIGN_OR_RETURN(const auto prefix, tokenizer.encode(before, ControlTokens::kAsText));
  ASSIGN_OR_RETURN(const auto suffix, tokenizer.encode(after, ControlTokens::kAsText));
  std::vector<TokenId> prompt = {prefix_token};
  prompt.insert(prompt.end(), prefix.begin(), prefix.end());
  prompt.push_back(suffix_token);
  prompt.insert(prompt.end(), suffix.begin(), suffix.end());
  prompt.push_back(middle_token);
  return prompt;
}

}  // namespace

Status complete_command(const Options& options, Output& output) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(options.file));
  ASSIGN_OR_RETURN(const size_t place,
                   byte_offset_of(text, options.line, options.column, options.file));
  RETURN_IF_ERROR(check_flags(options.sampling));
  ASSIGN_OR_RETURN(const auto engine, open_text_engine(options));
  const std::string_view whole = text;
  ASSIGN_OR_RETURN(const auto prompt,
                   middle_prompt(*engine, whole.substr(0, place), whole.substr(place)));
  GenerateOptions generate;
  generate.sampling = apply_flags(SamplingOptions(), options.sampling);  // greedy unless asked
  generate.max_tokens = options.common.max_tokens.value_or(kCompleteTokensDefault);
  for (const char* stop : kStopTokens) {
    if (const auto id = engine->tokenizer().added_token(stop)) generate.stop_tokens.push_back(*id);
  }
  return generate_to(*engine, prompt, std::move(generate), options, output);
}

}  // namespace moray
