// What one rendering may spend, so that no template and no request can hang or exhaust the machine.
//
// Invariant: every loop over data charges before it works. Steps are evaluated nodes and visited
// elements (a few nanoseconds each); bytes are text created, whether it survives or not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "src/base/status.h"
#include "src/text/marked_text.h"

namespace moray::jinja {

// A long agent conversation of 1000 messages takes about 0.5 M steps and ten copies of its text;
// these bounds leave a factor of 40 and end a hostile template within about two seconds.
inline constexpr int64_t kMaxSteps = 20'000'000;
inline constexpr int64_t kMaxBytes = int64_t{512} << 20;
// Nested evaluation, macro calls included: about 300 bytes of stack each, far below a thread's
// stack.
inline constexpr int kMaxEvaluationDepth = 600;

struct Budget {
  int64_t steps_left = kMaxSteps;
  int64_t bytes_left = kMaxBytes;

  Status charge_steps(int64_t count) {
    steps_left -= std::min(count, steps_left + 1);
    if (steps_left >= 0) return Status();
    return Status(StatusCode::kExhausted,
                  "rendering takes more than the limit of " + std::to_string(kMaxSteps) + " steps");
  }
  Status charge_bytes(int64_t count) {
    bytes_left -= std::min(count, bytes_left + 1);
    if (bytes_left >= 0) return Status();
    return Status(StatusCode::kExhausted, "rendering creates more text than the limit of " +
                                              std::to_string(kMaxBytes) + " bytes");
  }
  // A text with its marks, and `count` new list elements with what an element costs.
  Status charge_text(const MarkedText& text, int64_t copies = 1) {
    const auto bytes =
        static_cast<int64_t>(text.text.size() + text.content.size() * sizeof(ByteSpan));
    int64_t total = 0;
    return charge_bytes(__builtin_mul_overflow(bytes, copies, &total) ? kMaxBytes + 1 : total);
  }
  Status charge_items(int64_t count) {
    constexpr int64_t kItemBytes = 64;
    const Status steps = charge_steps(count);
    if (!steps.ok()) return steps;
    return charge_bytes(count * kItemBytes);
  }
};

}  // namespace moray::jinja
