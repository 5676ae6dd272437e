// Finds stop strings in text that arrives in pieces.
//
// Invariant: the result does not depend on how the text is cut into pieces. Text that may still
// become a stop string is held back, so it is never shown when it does and never lost when it does
// not. Pieces and stop strings are whole UTF-8 characters, hence so is everything that is released:
// a suffix that begins a stop string begins with its first byte, which starts a character.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace moray {

class StopMatcher {
 public:
  // Bounds the work of a piece and the text that can be held back.
  static constexpr size_t kStringsMax = 64;
  static constexpr size_t kBytesMax = 1024;

  // Names the first stop string that is empty, too long or not UTF-8, or their number.
  static Status validate(const std::vector<std::string>& stop);

  // `stop` must have passed validate().
  explicit StopMatcher(std::vector<std::string> stop);

  // Appends to `released` what became certain with `piece`. True when a stop string was completed:
  // the text before it has been released, it and what follows are dropped. Of several, the one that
  // ends first counts, and of those the longest. Further calls are not allowed then.
  bool push(std::string_view piece, std::string* released);
  // The text that was held back when the answer ended for another reason.
  std::string finish();

 private:
  size_t match_length_at_end(size_t end) const;
  size_t held_length() const;

  std::vector<std::string> stop_;
  std::string text_;  // held back, no stop string in it
};

}  // namespace moray
