// Splits text into the "words" that merging never crosses: the pre-tokenizer.
//
// Invariant: scan_word gives the matches of the tokenizer.json pattern, in order, by hand: one
// scan, no regular expression engine, no recursion. A pattern is known by its exact string; there
// is no parsing of patterns, so an unknown one is refused when the file is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace moray {

// Two generations: Qwen2, Qwen3, Qwen3-Next and Qwen3-Coder; Qwen3.5 and later, where combining
// marks belong to words.
enum class WordPattern : uint8_t { kQwen2, kQwen35 };

// The generation whose pattern string this is, if any.
std::optional<WordPattern> find_word_pattern(std::string_view regular_expression);

// End of the word that starts at `start`, as a byte offset. Preconditions: `text` is valid UTF-8,
// start < text.size() is a character's start. Looking past the end of the word happens only within
// one run of blanks; a whole text costs a small constant for each character.
size_t scan_word(WordPattern pattern, std::string_view text, size_t start);

}  // namespace moray
