// moray eval: how well the model predicts whole files, in bits per byte.
//
//   bits per byte = - sum over tokens of log2 p(token | <|endoftext|>, tokens before) / bytes
//
// over the raw UTF-8 bytes of each file. Every token counts, the first one too: it is predicted
// from <|endoftext|> alone, which is what separates documents in training. Text in the file that
// spells a control token is scored as text. A file beyond the context is refused, never cut.
#include <fmt/core.h>

#include <chrono>
#include <cmath>
#include <numeric>

#include "src/cli/command.h"
#include "src/cli/generation.h"
#include "src/cli/input.h"
#include "src/cli/interrupt.h"
#include "src/cli/model_choice.h"
#include "src/cli/progress.h"

namespace moray {
namespace {

struct FileScore {
  std::string path;
  int64_t bytes = 0;
  int64_t tokens = 0;
  double bits = 0;
};

Result<FileScore> score_file(const Engine& engine, Session& session, TokenId start,
                             const std::string& path, bool is_quiet) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  if (text.empty()) {
    return Status(StatusCode::kInvalidFile, path + ": found an empty file, expected text");
  }
  ASSIGN_OR_RETURN(auto tokens, engine.tokenizer().encode(text, ControlTokens::kAsText));
  FileScore score{path, static_cast<int64_t>(text.size()), static_cast<int64_t>(tokens.size()), 0};
  tokens.insert(tokens.begin(), start);
  if (static_cast<int64_t>(tokens.size()) > engine.context()) {
    return Status(StatusCode::kExhausted,
                  fmt::format("{}: found {} tokens, expected at most {} (the context)", path,
                              tokens.size(), engine.context()));
  }
  session.reset();
  Progress progress(path, ProgressUnit::kTokens, !is_quiet);
  const auto on_block = [&progress](int64_t done, int64_t total) {
    progress.update(done, total);
    return !is_interrupted();
  };
  ASSIGN_OR_RETURN(const std::vector<double> logs, session.score(tokens, on_block));
  score.bits = -std::accumulate(logs.begin(), logs.end(), 0.0) / std::log(2.0);
  return score;
}

std::string row(const FileScore& score) {
  return fmt::format("{:>10} {:>10} {:>10.4f}  {}\n", score.bytes, score.tokens,
                     score.bits / static_cast<double>(score.bytes), score.path);
}

}  // namespace

Status eval_command(const Options& options, Output& output) {
  for (const std::string& path : options.text_files) {  // say what is wrong before an hour's work
    RETURN_IF_ERROR(read_text_file(path).status());
  }
  ASSIGN_OR_RETURN(const auto engine, open_text_engine(options));
  const auto start = engine->tokenizer().added_token("<|endoftext|>");
  if (!start) {
    return Status(StatusCode::kUnsupported,
                  engine->model_name() + ": found no token <|endoftext|>, expected one");
  }
  ASSIGN_OR_RETURN(const auto session, engine->new_session());
  const auto began = std::chrono::steady_clock::now();
  FileScore total{"total", 0, 0, 0};
  for (const std::string& path : options.text_files) {
    ASSIGN_OR_RETURN(const FileScore score,
                     score_file(*engine, *session, *start, path, options.common.is_quiet));
    if (total.bytes == 0) output.write("     bytes     tokens  bits/byte  file\n");
    if (!output.write(row(score))) return output.status();
    total.bytes += score.bytes;
    total.tokens += score.tokens;
    total.bits += score.bits;
  }
  if (options.text_files.size() > 1) output.write(row(total));
  RETURN_IF_ERROR(output.status());
  if (!options.common.is_quiet) {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    print_note(fmt::format("{} tokens in {:.1f} s ({:.0f} tokens/s)\n{}", total.tokens, seconds,
                           static_cast<double>(total.tokens) / seconds, engine_lines(*engine)));
  }
  return Status();
}

}  // namespace moray
