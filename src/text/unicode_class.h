// What a code point is to the tokenizer: one byte of flags each.
//
// Invariant: the table says what the Hugging Face `tokenizers` package does, bit by bit, for every
// code point (tools/make_unicode_tables.py asks it, tools/check_unicode_tables.py checks it again,
// tests/text/unicode_class_test.cpp compares a digest). Unassigned code points have no flag.
#pragma once

#include <cstdint>

#include "src/text/unicode_tables.inc"

namespace moray {

enum UnicodeClass : uint8_t {
  kLetter = 1,       // \p{L}
  kMark = 2,         // \p{M}
  kNumber = 4,       // \p{N}
  kSpace = 8,        // \s, which is White_Space
  kWord = 16,        // \w, what a single_word token must not touch
  kComposes = 32,    // NFC may change or move it, or join it to what stands before
  kDecomposes = 64,  // it has a canonical decomposition
};

inline constexpr uint32_t kCodePointEnd = 0x110000;

// Flags of a code point. Precondition: code_point < kCodePointEnd.
inline uint8_t unicode_class(uint32_t code_point) {
  return kUnicodeClass[kUnicodeBlock[code_point >> 7] * 128u + (code_point & 127u)];
}

}  // namespace moray
