// Plain comparison at every new byte: at most 64 x 1024 bytes a byte, in practice one or two.
#include "src/generate/stop_matcher.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "src/text/utf8.h"

namespace moray {

Status StopMatcher::validate(const std::vector<std::string>& stop) {
  if (stop.size() > kStringsMax) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("stop: found {} strings, expected at most {}", stop.size(), kStringsMax));
  }
  for (size_t i = 0; i < stop.size(); ++i) {
    if (stop[i].empty() || stop[i].size() > kBytesMax) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("stop: found {} bytes in string {}, expected 1 to {}",
                                stop[i].size(), i + 1, kBytesMax));
    }
    if (const size_t bad = first_invalid_byte(stop[i]); bad != std::string::npos) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("stop: found an invalid byte at offset {} of string {}, expected "
                                "UTF-8",
                                bad, i + 1));
    }
  }
  return Status();
}

StopMatcher::StopMatcher(std::vector<std::string> stop) : stop_(std::move(stop)) {}

// Length of the longest stop string that ends at text_[end], 0 if none does.
size_t StopMatcher::match_length_at_end(size_t end) const {
  const std::string_view head = std::string_view(text_).substr(0, end);
  size_t longest = 0;
  for (const std::string& stop : stop_) {
    if (head.ends_with(stop)) longest = std::max(longest, stop.size());
  }
  return longest;
}

// Length of the longest suffix of text_ that begins a stop string.
size_t StopMatcher::held_length() const {
  const std::string_view text = text_;
  size_t held = 0;
  for (const std::string& stop : stop_) {
    for (size_t length = std::min(stop.size() - 1, text.size()); length > held; --length) {
      if (text.ends_with(std::string_view(stop).substr(0, length))) held = length;
    }
  }
  return held;
}

bool StopMatcher::push(std::string_view piece, std::string* released) {
  if (stop_.empty()) {
    released->append(piece);
    return false;
  }
  const size_t checked = text_.size();
  text_.append(piece);
  for (size_t end = checked + 1; end <= text_.size(); ++end) {
    const size_t length = match_length_at_end(end);
    if (length == 0) continue;
    released->append(text_, 0, end - length);
    text_.clear();
    return true;
  }
  const size_t certain = text_.size() - held_length();
  released->append(text_, 0, certain);
  text_.erase(0, certain);
  return false;
}

std::string StopMatcher::finish() {
  return std::exchange(text_, {});
}

}  // namespace moray
