// How many tokens of context a session gets, decided from byte counts before anything is allocated.
//
// Invariant: a plan that was accepted fits what was available, and a refusal says in numbers what
// was asked, what there is and what would fit. Tiers and devices are another planner's.
#pragma once

#include <cstdint>
#include <functional>

#include "src/base/status.h"

namespace moray {

// Share of what the weights leave that a session takes when nobody asked for a context: the other
// half is for a second session, the page cache and the rest of the machine.
inline constexpr int64_t kDefaultShareDivisor = 2;

struct ContextQuestion {
  int64_t requested = 0;        // tokens; 0: as many as the model has and memory allows
  int64_t max_positions = 0;    // the model's own limit
  int64_t available_bytes = 0;  // that may still be taken
  int64_t weight_bytes = 0;     // mapped from files; counted because decoding needs them in memory
  int64_t fixed_bytes = 0;      // workspaces, logits
  int64_t share_divisor = kDefaultShareDivisor;        // of what is left, when nobody asked
  std::function<int64_t(int64_t tokens)> state_bytes;  // never falls with more tokens
};

// The context in tokens. kInvalidArgument beyond max_positions; kExhausted when the requested one,
// or even a small one, does not fit.
Result<int64_t> plan_context(const ContextQuestion& question);

}  // namespace moray
