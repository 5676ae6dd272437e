// What a session needs of a model: consume tokens, give logits, forget.
//
// Keeping this to plain numbers and two functions lets the session's rules be tested on a made-up
// model, and keeps weights, state and threads the engine's business (engine.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "moray/engine.h"
#include "moray/text.h"

namespace moray {

struct StepModel {
  int64_t vocab_rows = 0;
  int64_t capacity = 0;      // tokens the state holds
  int64_t block_tokens = 0;  // tokens a call may consume
  // A long prompt is cut so that blocks end at multiples of this position; divides block_tokens.
  int64_t block_grid = 1;
  // Consumes 1..block_tokens ids and writes the logits of the last `logit_rows` of them,
  // [logit_rows, vocab_rows]. Does not allocate when logit_rows is 0 or 1. An error (a lost device)
  // leaves the model without meaning until clear().
  std::function<Status(std::span<const TokenId> tokens, int64_t logit_rows, float* logits)> forward;
  std::function<void()> clear;  // forgets every token

  // May be null. Greedy decoding that does not come back to the caller for each token: consumes
  // `first`, picks the likeliest of SessionContext::sampleable (ties: the lower id), hands it to
  // `take`, and goes on with it while `take` returns true. Picks at most `count` (>= 1) tokens.
  // Afterwards the model has consumed `first` and every token that was taken with true, except that
  // the last of `count` picks is never consumed; `logits` are those the last pick was made from. A
  // pick of -1 says that logits were not finite; it ends the call.
  std::function<Status(TokenId first, int64_t count, float* logits,
                       const std::function<bool(TokenId)>& take)>
      decode_greedily;
};

// What all sessions of an engine share.
struct SessionContext {
  std::shared_ptr<const Tokenizer> tokenizer;  // may be null: then nothing generates text
  std::vector<TokenId> end_tokens;
  std::vector<TokenId> sampleable;  // ids that may be sampled, ascending
};

std::unique_ptr<Session> make_session(StepModel model,
                                      std::shared_ptr<const SessionContext> context);

}  // namespace moray
