// UTF-8 by the byte; the rules are those of Unicode Table 3-7 (well-formed byte sequences).
#include "src/text/utf8.h"

#include <cstring>

namespace moray {
namespace {

constexpr size_t kQuotedBytes = 40;

// Length a lead byte promises and the range its second byte must lie in; length 0 is no lead byte.
struct Lead {
  uint8_t length, second_min, second_max;
};

constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};  // else overlong
  if (byte == 0xED) return {3, 0x80, 0x9F};  // else a surrogate
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};  // else overlong
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // else above U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  const auto byte = [bytes](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const Lead lead = lead_of(byte(0));
  if (lead.length <= 1) return {lead.length == 1 ? Utf8Kind::kCharacter : Utf8Kind::kInvalid, 1};
  if (bytes.size() == 1) return {Utf8Kind::kIncomplete, 1};
  if (byte(1) < lead.second_min || byte(1) > lead.second_max) return {Utf8Kind::kInvalid, 1};
  for (size_t i = 2; i < lead.length; ++i) {
    if (i == bytes.size()) return {Utf8Kind::kIncomplete, i};
    if ((byte(i) & 0xC0) != 0x80) return {Utf8Kind::kInvalid, i};
  }
  return {Utf8Kind::kCharacter, lead.length};
}

size_t first_invalid_byte(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    uint64_t word;
    while (i + sizeof(word) <= bytes.size()) {
      std::memcpy(&word, bytes.data() + i, sizeof(word));
      if (word & 0x8080808080808080u) break;
      i += sizeof(word);
    }
    if (i == bytes.size()) break;
    const Utf8Step step = utf8_step(bytes.substr(i));
    if (step.kind != Utf8Kind::kCharacter) return i;
    i += step.bytes;
  }
  return std::string_view::npos;
}

void append_character(std::string& text, uint32_t code_point) {
  const auto add = [&text](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | code_point >> 6);
    add(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    add(0xE0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  } else {
    add(0xF0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 0x3F));
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  }
}

std::string quote_bytes(std::string_view bytes) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out = "\"";
  for (const char c : bytes.substr(0, kQuotedBytes)) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte < 0x7F && c != '"' && c != '\\') {
      out += c;
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out + (bytes.size() > kQuotedBytes ? "\"..." : "\"");
}

}  // namespace moray
