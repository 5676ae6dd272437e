// The byte alphabet as a table from code point to byte, computed from its definition.
#include "src/text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "src/text/utf8.h"

namespace moray {
namespace {

constexpr uint32_t kAlphabetEnd = 0x144;

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Byte of each code point below kAlphabetEnd, or -1.
constexpr std::array<int16_t, kAlphabetEnd> make_byte_of() {
  std::array<int16_t, kAlphabetEnd> byte_of{};
  byte_of.fill(-1);
  uint32_t shifted = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    byte_of[stands_for_itself(byte) ? byte : shifted++] = static_cast<int16_t>(byte);
  }
  return byte_of;
}

constexpr std::array<int16_t, kAlphabetEnd> kByteOf = make_byte_of();
static_assert(kByteOf[kAlphabetEnd - 1] == 0xAD, "68 bytes are shifted, 0xAD is the last");

}  // namespace

std::optional<std::string> bytes_of_alphabet(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_character(text.data() + i);
    if (c.value >= kAlphabetEnd || kByteOf[c.value] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kByteOf[c.value]));
    i += c.bytes;
  }
  return bytes;
}

}  // namespace moray
