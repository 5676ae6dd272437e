// GPT-2's byte alphabet: tokenizer.json writes each byte of a token as one printable character.
//
// Bytes 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for themselves (as U+0021 ...); the other 68, in
// ascending order, are U+0100 to U+0143. Source: the encoder of the GPT-2 release.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace moray {

// The bytes that `text` (valid UTF-8) spells, or nothing if a character is outside the alphabet.
std::optional<std::string> bytes_of_alphabet(std::string_view text);

}  // namespace moray
