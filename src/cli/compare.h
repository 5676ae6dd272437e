// How far one engine's predictions are from another's over the same text: what a lossy option
// costs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "moray/engine.h"

namespace moray {

// Sums over predicted tokens.
struct Divergence {
  int64_t tokens = 0;
  double bits = 0;            // - log2 q(token), q the option's softmax
  double reference_bits = 0;  // - log2 p(token), p the reference's
  double kl = 0;              // sum over rows of the head of p ln(p / q), in nats
  int64_t top_1 = 0;          // tokens whose likeliest successor is the same (ties: the lower id)

  void add(const Divergence& other);
};

// Over the predictions of tokens[1..]; both sessions start empty and are at the text's end
// afterwards. Statistics in double. kInvalidFile for logits that are not finite; kCancelled when
// `progress` (tokens done, in all) returns false.
Result<Divergence> compare(Session& reference, Session& option, int64_t vocab_rows,
                           const std::vector<TokenId>& tokens,
                           const std::function<bool(int64_t, int64_t)>& progress);

}  // namespace moray
