// One conversation with a model: prefill in blocks, the decode loop, scoring.
//
// Invariant: tokens_ are exactly what the model has consumed, in order; has_logits_ says that
// logits_ belongs to the last of them. A step that was cancelled or refused has not happened.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "src/generate/answer_text.h"
#include "src/generate/exponential.h"
#include "src/generate/sampler.h"
#include "src/generate/step_model.h"

namespace moray {
namespace {

using Progress = std::function<bool(int64_t, int64_t)>;

// Logits that score() keeps at a time: 32 MiB, so that a vocabulary of 250 thousand still goes 33
// tokens a pass while a small one uses whole blocks.
constexpr int64_t kScoreLogitBytes = int64_t{32} << 20;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// ln p(target) under softmax of `row`; NaN when the row is not finite.
double log_probability(std::span<const float> row, TokenId target) {
  double max = row[0];
  for (const float logit : row) {
    if (!(logit - logit == 0)) return std::nan("");
    max = std::max<double>(max, logit);
  }
  double sum = 0;
  for (const float logit : row) sum += exp_nonpositive(logit - max);
  return row[static_cast<size_t>(target)] - max - std::log(sum);
}

Status not_finite() {
  return Status(StatusCode::kInvalidFile,
                "logits: found NaN or infinity, expected finite numbers "
                "(damaged weights or a numeric overflow)");
}

class ModelSession final : public Session {
 public:
  ModelSession(StepModel model, std::shared_ptr<const SessionContext> context)
      : model_(std::move(model)), context_(std::move(context)) {
    tokens_.reserve(static_cast<size_t>(std::min<int64_t>(model_.capacity, kTokensReserved)));
    logits_.resize(static_cast<size_t>(model_.vocab_rows));
  }

  Result<GenerateResult> generate(const std::vector<TokenId>& prompt,
                                  const GenerateOptions& options) override;
  Result<std::vector<double>> score(const std::vector<TokenId>& tokens,
                                    const Progress& progress) override;
  Result<std::vector<float>> logits(const std::vector<TokenId>& tokens) override;
  Status feed(const std::vector<TokenId>& tokens, const Progress& progress) override;
  Result<std::vector<TokenId>> continue_greedily(TokenId first, int64_t count) override;
  const std::vector<TokenId>& tokens() const override { return tokens_; }
  void reset() override;

 private:
  // Tokens whose list never grows during a decode step: 4 MiB, beyond any prompt tested here; a
  // longer session pays one copy at each doubling.
  static constexpr int64_t kTokensReserved = int64_t{1} << 20;

  static constexpr int64_t kTextBytesPerToken = 4;  // of code with a vocabulary of 8 thousand: 3.3

  int64_t position() const { return static_cast<int64_t>(tokens_.size()); }
  Status check_usable() const { return damage_; }
  Status check_tokens(const std::vector<TokenId>& tokens) const;
  Status check_options(const GenerateOptions& options) const;
  // A failure of the model is remembered in damage_.
  Status consume(std::span<const TokenId> tokens, int64_t logit_rows, float* logits);
  // True when all was consumed, false when cancelled.
  Result<bool> prefill(const std::vector<TokenId>& tokens, const Progress& progress,
                       const std::atomic<bool>* cancel);
  class AnswerBuilder;
  Status decode(const GenerateOptions& options, GenerateResult* result);
  // Up to `count` more tokens after the last of `result`, picked by the model itself.
  Status decode_greedily(int64_t count, AnswerBuilder* answer, GenerateResult* result);
  bool is_plain_greedy(const SamplingOptions& sampling) const;
  bool ends_answer(TokenId id, const GenerateOptions& options) const;

  StepModel model_;
  std::shared_ptr<const SessionContext> context_;
  std::vector<TokenId> tokens_;
  std::vector<float> logits_;  // [vocab_rows]
  bool has_logits_ = false;
  Status damage_;  // why the session cannot go on
};

Status ModelSession::check_tokens(const std::vector<TokenId>& tokens) const {
  if (tokens.empty() && !has_logits_) {
    return Status(StatusCode::kInvalidArgument, "prompt: found no tokens, expected at least one");
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= model_.vocab_rows) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("prompt: found token {} at index {}, expected 0 to {}", tokens[i],
                                i, model_.vocab_rows - 1));
    }
  }
  const int64_t room = model_.capacity - position();
  if (static_cast<int64_t>(tokens.size()) > room) {
    return Status(StatusCode::kExhausted,
                  fmt::format("prompt: found {} tokens, expected at most {} (context of {}, {} in "
                              "use)",
                              tokens.size(), room, model_.capacity, position()));
  }
  return Status();
}

Status ModelSession::check_options(const GenerateOptions& options) const {
  RETURN_IF_ERROR(validate(options.sampling, context_->sampleable.back() + 1));
  RETURN_IF_ERROR(StopMatcher::validate(options.stop));
  if (options.max_tokens < -1) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("max_tokens: found {}, expected -1 (no limit) or more", options.max_tokens));
  }
  return Status();
}

Status ModelSession::consume(std::span<const TokenId> tokens, int64_t logit_rows, float* logits) {
  damage_ = model_.forward(tokens, logit_rows, logits);
  RETURN_IF_ERROR(damage_);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return Status();
}

Result<bool> ModelSession::prefill(const std::vector<TokenId>& tokens, const Progress& progress,
                                   const std::atomic<bool>* cancel) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  for (int64_t begin = 0; begin < count;) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) return false;
    const int64_t block = model_.block_tokens - position() % model_.block_grid;
    const int64_t size = std::min(block, count - begin);
    const bool is_last = begin + size == count;
    has_logits_ = false;
    RETURN_IF_ERROR(consume({tokens.data() + begin, static_cast<size_t>(size)}, is_last ? 1 : 0,
                            is_last ? logits_.data() : nullptr));
    has_logits_ = is_last;
    begin += size;
    if (progress && !progress(begin, count)) return false;
  }
  return true;
}

bool ModelSession::ends_answer(TokenId id, const GenerateOptions& options) const {
  const auto has = [id](const std::vector<TokenId>& ids) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  return (!options.ignore_end_tokens && has(context_->end_tokens)) || has(options.stop_tokens);
}

bool ModelSession::is_plain_greedy(const SamplingOptions& sampling) const {
  return model_.decode_greedily != nullptr && sampling.temperature == 0 &&
         sampling.repetition_penalty == 1 && sampling.presence_penalty == 0 &&
         sampling.frequency_penalty == 0 && sampling.logit_bias.empty();
}

// The answer so far and whether it goes on: what every sampled token passes through, whoever
// sampled it.
class ModelSession::AnswerBuilder {
 public:
  AnswerBuilder(const ModelSession& session, const GenerateOptions& options, GenerateResult* result)
      : session_(session),
        options_(options),
        result_(*result),
        text_(session.context_->tokenizer, options.skip_special, options.stop) {}

  bool is_cancelled() {
    if (options_.cancel == nullptr || !options_.cancel->load(std::memory_order_relaxed)) {
      return false;
    }
    result_.stop_reason = StopReason::kCancelled;
    return true;
  }
  // False when `token` ends the answer.
  bool push(TokenId token) {
    result_.tokens.push_back(token);
    if (session_.ends_answer(token, options_)) {
      result_.stop_reason = StopReason::kEndOfSequence;
      return false;
    }
    piece_.clear();
    const bool is_stopped = text_.push(token, &piece_);
    if (is_stopped) result_.stop_reason = StopReason::kStopString;
    is_text_over_ = is_stopped;
    if (show(piece_)) return !is_stopped;
    result_.stop_reason = StopReason::kCancelled;
    result_.text += text_.finish();  // held back so far; nobody wants to see it
    is_text_over_ = true;
    return false;
  }
  void finish() {
    if (!is_text_over_) show(text_.finish());
  }

 private:
  bool show(const std::string& piece) {
    result_.text += piece;
    return piece.empty() || !options_.on_text || options_.on_text(piece);
  }

  const ModelSession& session_;
  const GenerateOptions& options_;
  GenerateResult& result_;
  AnswerText text_;
  std::string piece_;
  bool is_text_over_ = false;
};

Status ModelSession::decode(const GenerateOptions& options, GenerateResult* result) {
  Sampler sampler(options.sampling, context_->sampleable, model_.vocab_rows);
  sampler.note_prompt(tokens_);
  AnswerBuilder answer(*this, options, result);
  const int64_t room = model_.capacity - position() + 1;  // the last one is not fed
  const int64_t limit = options.max_tokens < 0 ? room : std::min(options.max_tokens, room);
  result->tokens.reserve(static_cast<size_t>(std::min(limit, kTokensReserved)));
  result->text.reserve(static_cast<size_t>(std::min(limit * kTextBytesPerToken, kTokensReserved)));
  result->stop_reason =
      limit == options.max_tokens ? StopReason::kMaxTokens : StopReason::kContextFull;
  for (int64_t count = 0; count < limit && !answer.is_cancelled(); ++count) {
    if (count > 0 && is_plain_greedy(options.sampling)) {
      RETURN_IF_ERROR(decode_greedily(limit - count, &answer, result));
      break;
    }
    if (count > 0) RETURN_IF_ERROR(consume({&result->tokens.back(), 1}, 1, logits_.data()));
    const Result<TokenId> sampled = sampler.sample(logits_, position());
    if (!sampled.ok()) return sampled.status();
    if (!answer.push(*sampled)) break;
  }
  answer.finish();
  return Status();
}

Status ModelSession::decode_greedily(int64_t count, AnswerBuilder* answer, GenerateResult* result) {
  bool is_finite = true;
  int64_t picks = 0;
  TokenId unfed = result->tokens.back();
  const auto take = [&](TokenId token) {
    tokens_.push_back(unfed);
    is_finite = token >= 0;
    if (!is_finite) return false;
    unfed = token;
    return answer->push(token) && ++picks < count && !answer->is_cancelled();
  };
  damage_ = model_.decode_greedily(unfed, count, logits_.data(), take);
  RETURN_IF_ERROR(damage_);
  return is_finite ? Status() : not_finite();
}

Result<GenerateResult> ModelSession::generate(const std::vector<TokenId>& prompt,
                                              const GenerateOptions& options) {
  RETURN_IF_ERROR(check_usable());
  if (context_->tokenizer == nullptr) {
    return Status(StatusCode::kUnsupported,
                  "tokenizer: found none, expected one (a model without can only be measured)");
  }
  RETURN_IF_ERROR(check_options(options));
  RETURN_IF_ERROR(check_tokens(prompt));
  GenerateResult result;
  result.prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t before = position();
  const auto prefill_start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const bool is_complete, prefill(prompt, options.on_prefill, options.cancel));
  result.prefill_seconds = seconds_since(prefill_start);
  result.prefill_tokens = position() - before;
  if (!is_complete) {
    result.stop_reason = StopReason::kCancelled;
    return result;
  }
  const auto decode_start = std::chrono::steady_clock::now();
  damage_ = decode(options, &result);
  result.decode_seconds = seconds_since(decode_start);
  if (!damage_.ok()) return damage_;
  return result;
}

Status ModelSession::feed(const std::vector<TokenId>& tokens, const Progress& progress) {
  RETURN_IF_ERROR(check_usable());
  RETURN_IF_ERROR(check_tokens(tokens));
  ASSIGN_OR_RETURN(const bool is_complete, prefill(tokens, progress, nullptr));
  if (is_complete) return Status();
  return Status(StatusCode::kCancelled, "prompt: cancelled while it was read");
}

Result<std::vector<TokenId>> ModelSession::continue_greedily(TokenId first, int64_t count) {
  RETURN_IF_ERROR(check_usable());
  CHECK(count >= 1, count);
  RETURN_IF_ERROR(check_tokens(std::vector<TokenId>(static_cast<size_t>(count), first)));
  std::vector<TokenId> picked = {first};
  picked.reserve(static_cast<size_t>(count) + 1);
  if (model_.decode_greedily != nullptr) {
    damage_ = model_.decode_greedily(first, count, logits_.data(), [&](TokenId token) {
      tokens_.push_back(picked.back());
      picked.push_back(token);
      return token >= 0 && static_cast<int64_t>(picked.size()) <= count;
    });
    if (damage_.ok() && picked.back() < 0) damage_ = not_finite();
    has_logits_ = damage_.ok();
  } else {
    Sampler sampler(SamplingOptions(), context_->sampleable, model_.vocab_rows);
    while (static_cast<int64_t>(picked.size()) <= count) {
      RETURN_IF_ERROR(consume({&picked.back(), 1}, 1, logits_.data()));
      has_logits_ = true;
      ASSIGN_OR_RETURN(const TokenId token, sampler.sample(logits_, position()));
      picked.push_back(token);
    }
  }
  RETURN_IF_ERROR(damage_);
  picked.erase(picked.begin());
  return picked;
}

Result<std::vector<double>> ModelSession::score(const std::vector<TokenId>& tokens,
                                                const Progress& progress) {
  RETURN_IF_ERROR(check_usable());
  RETURN_IF_ERROR(check_tokens(tokens));
  const int64_t count = static_cast<int64_t>(tokens.size());
  const size_t rows = static_cast<size_t>(model_.vocab_rows);
  const int64_t block =
      std::clamp<int64_t>(kScoreLogitBytes / (model_.vocab_rows * 4), 1, model_.block_tokens);
  std::vector<float> block_logits(static_cast<size_t>(std::min(block, count)) * rows);
  std::vector<double> scores;
  scores.reserve(tokens.size());
  if (has_logits_ && count > 0) scores.push_back(log_probability(logits_, tokens[0]));
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t size = std::min(block, count - begin);
    has_logits_ = false;
    RETURN_IF_ERROR(
        consume({tokens.data() + begin, static_cast<size_t>(size)}, size, block_logits.data()));
    for (int64_t i = begin; i < begin + size && i + 1 < count; ++i) {
      const std::span<const float> row(block_logits.data() + static_cast<size_t>(i - begin) * rows,
                                       rows);
      scores.push_back(log_probability(row, tokens[static_cast<size_t>(i) + 1]));
    }
    if (begin + size == count) {
      std::copy_n(block_logits.data() + static_cast<size_t>(size - 1) * rows, rows,
                  logits_.begin());
      has_logits_ = true;
    }
    if (progress && !progress(begin + size, count)) {
      return Status(StatusCode::kCancelled, "score: cancelled");
    }
  }
  const auto bad = std::find_if(scores.begin(), scores.end(),
                                [](double score) { return !std::isfinite(score); });
  if (bad == scores.end()) return scores;
  damage_ = Status(StatusCode::kInvalidFile,
                   fmt::format("logits: found NaN or infinity for the score of token {}, expected "
                               "finite numbers (damaged weights or a numeric overflow)",
                               bad - scores.begin() + count - static_cast<int64_t>(scores.size())));
  return damage_;
}

Result<std::vector<float>> ModelSession::logits(const std::vector<TokenId>& tokens) {
  RETURN_IF_ERROR(check_usable());
  RETURN_IF_ERROR(check_tokens(tokens));
  const size_t width = static_cast<size_t>(model_.vocab_rows);
  std::vector<float> rows(tokens.size() * width);
  const auto count = static_cast<int64_t>(tokens.size());
  for (int64_t begin = 0; begin < count; begin += model_.block_tokens) {
    const auto first = static_cast<size_t>(begin);
    const auto size = std::min(model_.block_tokens, count - begin);
    has_logits_ = false;
    RETURN_IF_ERROR(consume({tokens.data() + first, static_cast<size_t>(size)}, size,
                            rows.data() + first * width));
  }
  if (count > 0) {
    std::copy(rows.end() - static_cast<std::ptrdiff_t>(width), rows.end(), logits_.begin());
    has_logits_ = true;
  }
  return rows;
}

void ModelSession::reset() {
  model_.clear();
  tokens_.clear();
  has_logits_ = false;
  damage_ = Status();
}

}  // namespace

std::unique_ptr<Session> make_session(StepModel model,
                                      std::shared_ptr<const SessionContext> context) {
  return std::make_unique<ModelSession>(std::move(model), std::move(context));
}

}  // namespace moray
