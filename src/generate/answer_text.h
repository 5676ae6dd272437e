// The text of an answer, from sampled tokens to what a reader may see.
//
// Invariant: released pieces are valid UTF-8 and their concatenation is the answer's text, whatever
// the tokens' borders: a cut character is held until it is whole (and dropped if it never is), text
// that may become a stop string is held until that is decided.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "moray/text.h"
#include "src/generate/stop_matcher.h"

namespace moray {

class AnswerText {
 public:
  AnswerText(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
             const std::vector<std::string>& stop)
      : decoder_(std::move(tokenizer), skip_special), matcher_(stop) {}

  // Text that became certain with `id` goes to `released`; true when a stop string was completed.
  bool push(TokenId id, std::string* released) {
    return matcher_.push(decoder_.push(id), released);
  }
  // What was held back for a stop string that never came.
  std::string finish() {
    decoder_.finish();
    return matcher_.finish();
  }

 private:
  StreamDecoder decoder_;
  StopMatcher matcher_;
};

}  // namespace moray
