// Picks the next token from a row of logits.
//
// The steps, in this order (that of vLLM and transformers; llama.cpp applies the temperature last):
//   1. logit bias: l += bias
//   2. repetition penalty r, over prompt and answer: l > 0 ? l / r : l * r
//   3. presence and frequency penalty, over the answer: l -= presence + frequency * count
//   4. temperature 0: the largest l. Else p = softmax(l / temperature) and
//   5. top-k: the k largest;  6. min-p: those with p >= min_p * max p;
//   7. top-p: the fewest of the rest, largest first, that hold top_p of their sum;
//   8. a draw by inverse distribution function with uniform_at(seed, position).
// Ties go to the lower id everywhere. Rows that are no token (padding, holes) are never candidates.
// Invariant: the pick is a function of logits, options, history and position; it uses no library
// function whose bits vary by machine. Stop conditions are the session's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "moray/engine.h"
#include "src/base/status.h"

namespace moray {

class Sampler {
 public:
  // `options` must have passed validate(). `candidates`: the ids that may be sampled, ascending,
  // all < vocab_rows. Allocates all that sampling needs: about 13 bytes a row, and 24 more when the
  // temperature is not 0 and top-k is off.
  Sampler(const SamplingOptions& options, std::span<const TokenId> candidates, int64_t vocab_rows);

  // Tokens before the answer, for the repetition penalty.
  void note_prompt(std::span<const TokenId> tokens);

  // The token at `position` of the sequence, which is then noted as part of the answer.
  // `logits`: [vocab_rows]. kInvalidFile when a candidate's logit is NaN or infinite.
  // Does not allocate. Cost: two passes over the row that test 64 logits at a time; an exponential
  // a row only when top-k is off.
  Result<TokenId> sample(std::span<const float> logits, int64_t position);

 private:
  struct Entry {
    float logit;
    TokenId id;
    double weight;  // exp((logit - max) / temperature)
  };
  static bool ranks_before(const Entry& a, const Entry& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }

  // Consecutive rows that are all candidates; real vocabularies have one or two.
  struct Run {
    TokenId begin, end;
  };

  std::optional<TokenId> find_non_finite(std::span<const float> logits) const;
  void adjust(std::span<const float> logits);
  void note_answer(TokenId id);
  TokenId argmax(std::span<const float> logits) const;
  void keep_all(std::span<const float> logits);
  void keep_top_k(std::span<const float> logits);
  void weigh();
  void keep_min_p();
  void keep_top_p();
  TokenId draw(int64_t position) const;

  SamplingOptions options_;
  std::vector<Run> runs_;  // the candidates, ascending
  int64_t candidate_count_;
  bool is_adjusting_ = false;           // any of steps 1 to 3 is on
  std::vector<float> adjusted_;         // [vocab_rows]
  std::vector<Entry> entries_;          // survivors so far
  bool is_ranked_ = false;              // entries_ are in ranks_before order
  std::vector<uint8_t> is_seen_;        // [vocab_rows]
  std::vector<TokenId> seen_;           // distinct, prompt and answer
  std::vector<int32_t> answer_counts_;  // [vocab_rows]
  std::vector<TokenId> answer_;         // distinct
};

}  // namespace moray
