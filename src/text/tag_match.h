// Matching tags at the beginning of text that may go on.
//
// Invariant: space before a tag counts up to kTagSpaceMax bytes and a name up to kTagNameMax, so a
// match looks at a bounded number of bytes.
#pragma once

#include <algorithm>
#include <string_view>

namespace moray {

constexpr size_t kTagSpaceMax = 64;
constexpr size_t kTagNameMax = 256;

enum class Match { kNo, kPartial, kYes };  // kPartial: more text may make it either

struct TagMatch {
  Match match = Match::kNo;
  size_t length = 0;      // of the whole tag, when kYes
  std::string_view name;  // of a named tag, when kYes
};

inline bool is_tag_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

inline size_t space_length(std::string_view text) {
  const size_t bound = std::min(text.size(), kTagSpaceMax);
  size_t length = 0;
  while (length < bound && is_tag_space(text[length])) ++length;
  return length;
}

inline TagMatch match_tag(std::string_view text, std::string_view tag) {
  if (text.starts_with(tag)) return {Match::kYes, tag.size(), {}};
  return {tag.starts_with(text) ? Match::kPartial : Match::kNo, 0, {}};
}

// `opener`, a name without angle brackets and line ends, and ">".
inline TagMatch match_named_tag(std::string_view text, std::string_view opener) {
  const TagMatch open = match_tag(text, opener);
  if (open.match != Match::kYes) return open;
  const std::string_view tail = text.substr(opener.size(), kTagNameMax + 1);
  const size_t end = tail.find_first_of("<>\r\n");
  if (end == tail.npos) {
    return {tail.size() > kTagNameMax ? Match::kNo : Match::kPartial, 0, {}};
  }
  if (tail[end] != '>' || end == 0) return {};
  return {Match::kYes, opener.size() + end + 1, tail.substr(0, end)};
}

}  // namespace moray
