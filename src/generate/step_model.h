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
  // Consumes 1..block_tokens ids and writes the logits of the last `logit_rows` of them,
  // [logit_rows, vocab_rows]. Does not allocate when logit_rows is 0 or 1.
  std::function<void(std::span<const TokenId> tokens, int64_t logit_rows, float* logits)> forward;
  std::function<void()> clear;  // forgets every token
};

// What all sessions of an engine share.
struct SessionContext {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<TokenId> end_tokens;
  std::vector<TokenId> sampleable;  // ids that may be sampled, ascending
};

std::unique_ptr<Session> make_session(StepModel model,
                                      std::shared_ptr<const SessionContext> context);

}  // namespace moray
