// UTF-8 by the byte: check it, step through it, decode what has been checked.
//
// Invariant: utf8_step is the only place that knows which byte sequences are well formed (Unicode
// Table 3-7), so validation and the stream decoder cannot disagree. An invalid part is a "maximal
// subpart": what Python's errors="replace" and Rust's lossy conversion turn into one U+FFFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moray {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind : uint8_t { kCharacter, kInvalid, kIncomplete };

// What stands at the start of a byte sequence, and how many bytes it takes.
// kIncomplete: all the bytes there are could still begin a character.
struct Utf8Step {
  Utf8Kind kind;
  size_t bytes;
};

// Precondition: !bytes.empty().
Utf8Step utf8_step(std::string_view bytes);

// Offset of the first byte that is not part of a well-formed character, or npos.
size_t first_invalid_byte(std::string_view bytes);

struct CodePoint {
  uint32_t value;
  uint32_t bytes;
};

// Decodes the character at `text`, which has to be valid UTF-8.
inline CodePoint decode_character(const char* text) {
  const auto byte = [text](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0xF) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 7) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// Appends `code_point`, a Unicode scalar value.
void append_character(std::string& text, uint32_t code_point);

// `bytes` in double quotes for an error message: at most 40 bytes, all but printable ASCII as \xNN,
// so that a message is one clean line whatever a file or user wrote.
std::string quote_bytes(std::string_view bytes);

}  // namespace moray
