#include "src/cli/generation.h"

#include <fmt/core.h>

#include <limits>

#include "src/cli/interrupt.h"
#include "src/cli/progress.h"

namespace moray {
namespace {

std::string rate(int64_t tokens, double seconds) {
  if (tokens <= 0 || seconds <= 0) return "";
  return fmt::format(" ({:.1f} tokens/s)", static_cast<double>(tokens) / seconds);
}

std::string stop_line(const GenerateResult& result, const Engine& engine, int64_t max_tokens) {
  switch (result.stop_reason) {
    case StopReason::kEndOfSequence:
      return "end token";
    case StopReason::kStopString:
      return "stop string";
    case StopReason::kMaxTokens:
      return fmt::format("after {} tokens (--max-tokens N changes it)", max_tokens);
    case StopReason::kContextFull:
      return fmt::format("context full at {} tokens", engine.context());
    case StopReason::kCancelled:
      return "interrupted";
  }
  return "";
}

// "213450 tokens", or "4352 of 213450 tokens" when reading was interrupted.
std::string prompt_amount(const GenerateResult& result) {
  if (result.prefill_tokens == result.prompt_tokens) {
    return fmt::format("{} tokens", result.prompt_tokens);
  }
  return fmt::format("{} of {} tokens", result.prefill_tokens, result.prompt_tokens);
}

void print_statistics(const GenerateResult& result, const Engine& engine, int64_t max_tokens) {
  const int64_t sampled = static_cast<int64_t>(result.tokens.size());
  print_note(
      fmt::format("\nprompt:  {} in {:.2f} s{}\n"
                  "answer:  {} tokens in {:.2f} s{}\n"
                  "stopped: {}\n"
                  "{}",
                  prompt_amount(result), result.prefill_seconds,
                  rate(result.prefill_tokens, result.prefill_seconds), sampled,
                  result.decode_seconds, rate(sampled - 1, result.decode_seconds),
                  stop_line(result, engine, max_tokens), engine_lines(engine)));
}

}  // namespace

std::string engine_lines(const Engine& engine) {
  std::string lines = fmt::format("backend: {}\nmodel:   {}, {}", engine.backend_line(),
                                  engine.model_name(), engine.weights_line());
  if (!engine.lossy_line().empty()) lines += "\nlossy:   " + engine.lossy_line();
  for (const std::string& note : engine.notes()) lines += "\nnote:    " + note;
  return lines;
}

Status check_flags(const SamplingFlags& flags) {
  constexpr int64_t kAnyVocabulary = std::numeric_limits<TokenId>::max();
  return validate(apply_flags(SamplingOptions(), flags), kAnyVocabulary);
}

SamplingOptions apply_flags(SamplingOptions base, const SamplingFlags& flags) {
  base.temperature = flags.temperature.value_or(base.temperature);
  base.top_k = flags.top_k.value_or(base.top_k);
  base.top_p = flags.top_p.value_or(base.top_p);
  base.min_p = flags.min_p.value_or(base.min_p);
  base.repetition_penalty = flags.repetition_penalty.value_or(base.repetition_penalty);
  base.presence_penalty = flags.presence_penalty.value_or(base.presence_penalty);
  base.frequency_penalty = flags.frequency_penalty.value_or(base.frequency_penalty);
  base.seed = flags.seed.value_or(base.seed);
  base.logit_bias = flags.logit_bias;
  return base;
}

Status generate_to(const Engine& engine, const std::vector<TokenId>& prompt,
                   GenerateOptions generate, const Options& options, Output& output) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, engine.new_session());
  const bool is_quiet = options.common.is_quiet;
  auto progress = std::make_unique<Progress>("reading", ProgressUnit::kTokens, !is_quiet);
  generate.stop = options.sampling.stop;
  generate.cancel = &interrupt_flag();
  generate.on_prefill = [&progress](int64_t done, int64_t total) {
    progress->update(done, total);
    if (done == total) progress.reset();  // the line is gone before the answer starts
    return true;
  };
  bool ends_line = true;
  generate.on_text = [&](std::string_view piece) {
    ends_line = piece.ends_with('\n');
    return output.write(piece);
  };
  ASSIGN_OR_RETURN(const GenerateResult result, session->generate(prompt, generate));
  progress.reset();
  if (output.is_terminal() && !ends_line) output.write("\n");
  RETURN_IF_ERROR(output.status());
  if (!is_quiet) print_statistics(result, engine, generate.max_tokens);
  if (result.stop_reason != StopReason::kCancelled) return Status();
  return Status(StatusCode::kCancelled, "interrupted");
}

}  // namespace moray
