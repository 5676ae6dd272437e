// moray eval: how well the model predicts whole files, in bits per byte, and what options cost.
//
//   bits per byte = - sum over tokens of log2 p(token | <|endoftext|>, tokens before) / bytes
//
// over the raw UTF-8 bytes of each file. Every token counts, the first one too: it is predicted
// from <|endoftext|> alone, which is what separates documents in training. Text in the file that
// spells a control token is scored as text. A file beyond the context is refused, never cut.
//
// With an option that is not lossless the model is loaded a second time without it, and both read
// the files side by side: KL(without || with) in nats a token, and how often both find the same
// token likeliest.
#include <fmt/core.h>

#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>

#include "src/cli/command.h"
#include "src/cli/compare.h"
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
  Divergence sums;  // only tokens and bits without a reference
};

// An engine and its one session.
struct Reader {
  std::shared_ptr<const Engine> engine;
  std::unique_ptr<Session> session;

  static Result<Reader> open(const Options& options) {
    Reader reader;
    ASSIGN_OR_RETURN(reader.engine, open_text_engine(options));
    ASSIGN_OR_RETURN(reader.session, reader.engine->new_session());
    return reader;
  }
};

// <|endoftext|> and the file.
Result<std::vector<TokenId>> tokens_of(const Engine& engine, const std::string& path,
                                       const std::string& text) {
  const auto start = engine.tokenizer().added_token("<|endoftext|>");
  if (!start) {
    return Status(StatusCode::kUnsupported,
                  engine.model_name() + ": found no token <|endoftext|>, expected one");
  }
  if (text.empty()) {
    return Status(StatusCode::kInvalidFile, path + ": found an empty file, expected text");
  }
  ASSIGN_OR_RETURN(auto tokens, engine.tokenizer().encode(text, ControlTokens::kAsText));
  tokens.insert(tokens.begin(), *start);
  if (static_cast<int64_t>(tokens.size()) > engine.context()) {
    return Status(StatusCode::kExhausted,
                  fmt::format("{}: found {} tokens, expected at most {} (the context)", path,
                              tokens.size(), engine.context()));
  }
  return tokens;
}

Result<FileScore> score_file(Reader& reader, Reader* reference, const std::string& path,
                             bool is_quiet) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  ASSIGN_OR_RETURN(const auto tokens, tokens_of(*reader.engine, path, text));
  FileScore score{path, static_cast<int64_t>(text.size()), {}};
  reader.session->reset();
  Progress progress(path, ProgressUnit::kTokens, !is_quiet);
  const auto on_block = [&progress](int64_t done, int64_t total) {
    progress.update(done, total);
    return !is_interrupted();
  };
  if (reference != nullptr) {
    reference->session->reset();
    ASSIGN_OR_RETURN(score.sums, compare(*reference->session, *reader.session,
                                         reader.engine->vocab_rows(), tokens, on_block));
    return score;
  }
  ASSIGN_OR_RETURN(const std::vector<double> logs, reader.session->score(tokens, on_block));
  score.sums.tokens = static_cast<int64_t>(logs.size());
  score.sums.bits = -std::accumulate(logs.begin(), logs.end(), 0.0) / std::log(2.0);
  return score;
}

std::string head_line(bool is_compared) {
  return is_compared ? "     bytes     tokens  bits/byte    without    KL nats   top-1 %  file\n"
                     : "     bytes     tokens  bits/byte  file\n";
}

std::string row(const FileScore& score, bool is_compared) {
  const auto bytes = static_cast<double>(score.bytes);
  const auto tokens = static_cast<double>(score.sums.tokens);
  const std::string plain = fmt::format("{:>10} {:>10} {:>10.4f}", score.bytes, score.sums.tokens,
                                        score.sums.bits / bytes);
  if (!is_compared) return fmt::format("{}  {}\n", plain, score.path);
  return fmt::format("{} {:>10.4f} {:>10.6f} {:>9.2f}  {}\n", plain,
                     score.sums.reference_bits / bytes, score.sums.kl / tokens,
                     100 * static_cast<double>(score.sums.top_1) / tokens, score.path);
}

Options without_lossy(Options options) {
  options.common.has_fp8_head = false;
  options.common.has_fp8_kv = false;
  options.common.is_fast = false;
  return options;
}

}  // namespace

Status eval_command(const Options& options, Output& output) {
  for (const std::string& path : options.text_files) {  // say what is wrong before an hour's work
    RETURN_IF_ERROR(read_text_file(path).status());
  }
  ASSIGN_OR_RETURN(Reader reader, Reader::open(options));
  std::optional<Reader> reference;
  if (!reader.engine->lossy_line().empty()) {
    ASSIGN_OR_RETURN(reference, Reader::open(without_lossy(options)));
  }
  const bool is_compared = reference.has_value();
  const auto began = std::chrono::steady_clock::now();
  FileScore total{"total", 0, {}};
  for (const std::string& path : options.text_files) {
    ASSIGN_OR_RETURN(const FileScore score, score_file(reader, is_compared ? &*reference : nullptr,
                                                       path, options.common.is_quiet));
    if (total.bytes == 0) output.write(head_line(is_compared));
    if (!output.write(row(score, is_compared))) return output.status();
    total.bytes += score.bytes;
    total.sums.add(score.sums);
  }
  if (options.text_files.size() > 1) output.write(row(total, is_compared));
  RETURN_IF_ERROR(output.status());
  if (!options.common.is_quiet) {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    print_note(fmt::format("{} tokens in {:.1f} s ({:.0f} tokens/s)\n{}", total.sums.tokens,
                           seconds, static_cast<double>(total.sums.tokens) / seconds,
                           engine_lines(*reader.engine)));
  }
  return Status();
}

}  // namespace moray
