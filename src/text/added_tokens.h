// Added tokens: literal strings that become one id before any normalisation or merging.
//
// Invariant: matching is leftmost, then longest, without overlap; the flags do what they do in
// Hugging Face `tokenizers`, quirks included (a match refused by single_word is still stepped
// over). Whether text is searched at all is the caller's choice: content is not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/token_table.h"

namespace moray {

struct AddedToken {
  std::string text;
  TokenId id = kNoToken;
  bool is_special = false;      // decoding may leave it out
  bool is_normalized = false;   // looked for in normalised text
  bool is_single_word = false;  // only where no word character touches it
  bool strips_left = false;     // takes the white space before it
  bool strips_right = false;    // takes the white space after it
};

// Bytes [start, end) of a text: an added token, or plain text when id is kNoToken.
struct TextPiece {
  size_t start;
  size_t end;
  TokenId id;
};

class AddedTokenMatcher {
 public:
  // Finds `tokens`, which must have different, non-empty texts.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Cuts `text` (valid UTF-8) into pieces. Cost: one look at each byte, and at most the longest
  // token more where a token could start.
  std::vector<TextPiece> split(std::string_view text) const;

 private:
  struct Node {
    uint32_t first_child = 0;  // 0: none, since the root is nobody's child
    uint32_t next_sibling = 0;
    int32_t token = -1;  // index into tokens_
    char byte = 0;
  };
  struct Match {
    int32_t token;  // -1: none
    size_t bytes;
  };
  void insert(std::string_view text, int32_t token);
  uint32_t find_child(uint32_t node, char byte) const;
  Match longest_match(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // a trie; nodes_[0] is the root
  bool starts_token_[256] = {};
};

}  // namespace moray
