// StreamDecoder: what can no longer change leaves at once, an unfinished character waits.
//
// Invariant: tail_ is empty or the start of one well-formed character, so it is at most 3 bytes,
// and the pieces joined equal the whole decoded at once (less an unfinished tail).
#include "moray/text.h"
#include "src/text/utf8.h"

namespace moray {

StreamDecoder::StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

std::string StreamDecoder::push(TokenId id) {
  tail_ += tokenizer_->token_bytes(id, skip_special_);
  std::string text;
  std::string_view left = tail_;
  while (!left.empty()) {
    const Utf8Step step = utf8_step(left);
    if (step.kind == Utf8Kind::kIncomplete) break;
    text += step.kind == Utf8Kind::kCharacter ? left.substr(0, step.bytes) : kReplacementCharacter;
    left.remove_prefix(step.bytes);
  }
  tail_ = std::string(left);
  return text;
}

int64_t StreamDecoder::finish() {
  const auto dropped = static_cast<int64_t>(tail_.size());
  tail_.clear();
  return dropped;
}

}  // namespace moray
