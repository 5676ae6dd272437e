// The scanner of both pattern generations; they differ in what a letter is.
//
// Alternatives, first match wins (L letter, N number, S white space, NL = \r or \n):
//   1 (?i:'s|'t|'re|'ve|'m|'ll|'d)    contraction; U+017F folds to s
//   2 [^ NL L N]? L+                  letters with one optional other character before them
//   3 N                               one number character
//   4 ' '? [^ S L N]+ NL*             punctuation with an optional blank before it, line ends after
//   5 S* NL+                          blanks up to the last line end of the run
//   6 S+ (?!S)                        blanks, leaving the last to the next word
//   7 S+
// Qwen3.5 reads L as letters and marks. In alternative 2 the optional character may then itself be
// a mark, which matches the same text as the run of letters does.
#include "src/text/word_scanner.h"

#include "src/text/unicode_class.h"
#include "src/text/utf8.h"

namespace moray {
namespace {

constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Character {
  uint8_t flags;
  uint8_t bytes;
};

inline bool is_line_end(char c) {
  return c == '\r' || c == '\n';
}

template <uint8_t kLetters>
struct Scanner {
  static constexpr uint8_t kNotPunctuation = kLetters | kNumber | kSpace;

  std::string_view text;

  Character at(size_t i) const {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte < 0x80) return {unicode_class(byte), 1};
    const CodePoint c = decode_character(text.data() + i);
    return {unicode_class(c.value), static_cast<uint8_t>(c.bytes)};
  }

  bool starts_with(size_t i, uint8_t flags) const {
    return i < text.size() && (at(i).flags & flags) != 0;
  }

  size_t skip_letters(size_t i) const {
    while (i < text.size()) {
      const Character c = at(i);
      if (!(c.flags & kLetters)) break;
      i += c.bytes;
    }
    return i;
  }

  // Bytes of a contraction whose apostrophe is at `i`, or 0.
  size_t contraction_bytes(size_t i) const {
    const auto lower = [this](size_t j) {
      const char c = j < text.size() ? text[j] : '\0';
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    switch (lower(i + 1)) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return 2;
      case 'r':
      case 'v':
        return lower(i + 2) == 'e' ? 3 : 0;
      case 'l':
        return lower(i + 2) == 'l' ? 3 : 0;
      default:
        return text.substr(i + 1, 2) == "\xC5\xBF" ? 3 : 0;
    }
  }

  // Alternative 4, or `start` if there is none.
  size_t punctuation_end(size_t start) const {
    const size_t first = text[start] == ' ' ? start + 1 : start;
    size_t i = first;
    while (i < text.size()) {
      const Character c = at(i);
      if (c.flags & kNotPunctuation) break;
      i += c.bytes;
    }
    if (i == first) return start;
    while (i < text.size() && is_line_end(text[i])) ++i;
    return i;
  }

  // Alternatives 5 to 7. Precondition: a white space character stands at `start`.
  size_t blank_end(size_t start) const {
    size_t i = start, last = start, after_line_end = start;
    while (i < text.size()) {
      const Character c = at(i);
      if (!(c.flags & kSpace)) break;
      last = i;
      if (is_line_end(text[i])) after_line_end = i + 1;
      i += c.bytes;
    }
    if (after_line_end > start) return after_line_end;
    return i == text.size() || last == start ? i : last;
  }

  size_t word_end(size_t start) const {
    const char byte = text[start];
    if (byte == '\'') {
      if (const size_t bytes = contraction_bytes(start)) return start + bytes;
    }
    const Character c = at(start);
    const size_t next = start + c.bytes;
    if (c.flags & kLetters) return skip_letters(next);
    if (c.flags & kNumber) return next;
    if (!is_line_end(byte) && starts_with(next, kLetters)) return skip_letters(next);
    if (const size_t end = punctuation_end(start); end > start) return end;
    return blank_end(start);
  }
};

}  // namespace

std::optional<WordPattern> find_word_pattern(std::string_view regular_expression) {
  if (regular_expression == kQwen2Pattern) return WordPattern::kQwen2;
  if (regular_expression == kQwen35Pattern) return WordPattern::kQwen35;
  return std::nullopt;
}

size_t scan_word(WordPattern pattern, std::string_view text, size_t start) {
  if (pattern == WordPattern::kQwen2) return Scanner<kLetter>{text}.word_end(start);
  return Scanner<kLetter | kMark>{text}.word_end(start);
}

}  // namespace moray
