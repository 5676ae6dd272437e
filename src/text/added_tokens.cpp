// A byte trie over the added tokens, and the flags' effect on what surrounds a match.
#include "src/text/added_tokens.h"

#include <algorithm>

#include "src/text/unicode_class.h"
#include "src/text/utf8.h"

namespace moray {
namespace {

// Start of the last character of `text`, which is not empty.
size_t last_character(std::string_view text) {
  size_t i = text.size() - 1;
  while (i > 0 && (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80) --i;
  return i;
}

bool starts_with_class(std::string_view text, uint8_t flags) {
  return !text.empty() && (unicode_class(decode_character(text.data()).value) & flags) != 0;
}

bool ends_with_class(std::string_view text, uint8_t flags) {
  return !text.empty() && starts_with_class(text.substr(last_character(text)), flags);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), nodes_(1) {
  for (size_t i = 0; i < tokens_.size(); ++i) insert(tokens_[i].text, static_cast<int32_t>(i));
}

uint32_t AddedTokenMatcher::find_child(uint32_t node, char byte) const {
  uint32_t child = nodes_[node].first_child;
  while (child != 0 && nodes_[child].byte != byte) child = nodes_[child].next_sibling;
  return child;
}

void AddedTokenMatcher::insert(std::string_view text, int32_t token) {
  starts_token_[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (const char byte : text) {
    uint32_t child = find_child(node, byte);
    if (child == 0) {
      child = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({0, nodes_[node].first_child, -1, byte});
      nodes_[node].first_child = child;
    }
    node = child;
  }
  nodes_[node].token = token;
}

AddedTokenMatcher::Match AddedTokenMatcher::longest_match(std::string_view text) const {
  Match longest = {-1, 0};
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    node = find_child(node, text[i]);
    if (node == 0) break;
    if (nodes_[node].token >= 0) longest = {nodes_[node].token, i + 1};
  }
  return longest;
}

std::vector<TextPiece> AddedTokenMatcher::split(std::string_view text) const {
  std::vector<TextPiece> pieces;
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    const Match match =
        starts_token_[static_cast<uint8_t>(text[i])] ? longest_match(text.substr(i)) : Match{-1, 0};
    if (match.token < 0) {
      ++i;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(match.token)];
    size_t start = i, end = i + match.bytes;
    i = end;
    if (token.is_single_word && (ends_with_class(text.substr(0, start), kWord) ||
                                 starts_with_class(text.substr(end), kWord))) {
      continue;
    }
    if (token.strips_left) {
      while (start > done && ends_with_class(text.substr(0, start), kSpace)) {
        start = last_character(text.substr(0, start));
      }
      start = std::max(start, done);
    }
    if (token.strips_right) {
      while (starts_with_class(text.substr(end), kSpace)) {
        end += decode_character(text.data() + end).bytes;
      }
    }
    if (done < start) pieces.push_back({done, start, kNoToken});
    pieces.push_back({start, end, token.id});
    done = end;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), kNoToken});
  return pieces;
}

}  // namespace moray
