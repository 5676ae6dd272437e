// Python's text rules over utf8proc's Unicode tables. See python_text.h.
#include "src/text/python_text.h"

#include <utf8proc.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "src/text/utf8.h"

namespace moray::jinja {
namespace {

bool has_code_point(std::string_view chars, char32_t wanted) {
  for (size_t i = 0; i < chars.size(); i += code_point_bytes(chars, i)) {
    if (code_point_at(chars, i) == wanted) return true;
  }
  return false;
}

template <typename Predicate>
std::string_view drop_left(std::string_view text, Predicate drops) {
  size_t i = 0;
  while (i < text.size() && drops(code_point_at(text, i))) i += code_point_bytes(text, i);
  return text.substr(i);
}

template <typename Predicate>
std::string_view drop_right(std::string_view text, Predicate drops) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
    if (!drops(code_point_at(text, start))) break;
    end = start;
  }
  return text.substr(0, end);
}

bool is_cased(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

// Characters of Unicode's SpecialCasing.txt: the mapping has several characters or needs context.
bool is_special_case(char32_t c, bool to_lower) {
  if (to_lower) return c == 0x130 || c == 0x3A3;
  return c == 0xDF || c == 0x149 || c == 0x1F0 || c == 0x390 || c == 0x3B0 || c == 0x587 ||
         (c >= 0x1E96 && c <= 0x1E9A) || (c >= 0x1F50 && c <= 0x1FFF) ||
         (c >= 0xFB00 && c <= 0xFB17);
}

char32_t map_case(char32_t c, Case target) {
  const auto code = static_cast<utf8proc_int32_t>(c);
  if (target == Case::kLower) return static_cast<char32_t>(utf8proc_tolower(code));
  if (target == Case::kUpper) return static_cast<char32_t>(utf8proc_toupper(code));
  return static_cast<char32_t>(utf8proc_totitle(code));
}

}  // namespace

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::string_view strip_left(std::string_view text) {
  return drop_left(text, is_space);
}
std::string_view strip_right(std::string_view text) {
  return drop_right(text, is_space);
}

std::string_view strip_left(std::string_view text, std::string_view chars) {
  return drop_left(text, [&](char32_t c) { return has_code_point(chars, c); });
}

std::string_view strip_right(std::string_view text, std::string_view chars) {
  return drop_right(text, [&](char32_t c) { return has_code_point(chars, c); });
}

Result<MarkedText> change_case(const MarkedText& text, Case target) {
  MarkedText out;
  out.text.reserve(text.text.size());
  bool follows_cased = false;
  for (size_t i = 0; i < text.text.size(); i += code_point_bytes(text.text, i)) {
    const char32_t c = code_point_at(text.text, i);
    Case here = target;
    if (target == Case::kTitle && follows_cased) here = Case::kLower;
    if (target == Case::kCapitalize) here = i == 0 ? Case::kTitle : Case::kLower;
    if (c >= 0x80 && is_special_case(c, here == Case::kLower)) {
      char name[16];
      snprintf(name, sizeof name, "U+%04X", static_cast<unsigned>(c));
      return Status(StatusCode::kUnsupported, std::string("letter case of ") + name +
                                                  " has several characters or needs context");
    }
    std::string mapped;
    append_character(mapped, map_case(c, here));
    append(out, mapped, mark_at(text, i));
    follows_cased = is_cased(c);
  }
  return out;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

bool is_letter(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return is_cased(c) || category == UTF8PROC_CATEGORY_LM || category == UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND;
}

bool is_lower(char32_t c) {
  return utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0;
}

bool is_upper(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LU;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string digits(buffer, end.ptr);
  const size_t e = digits.find('e');
  const int exponent = std::atoi(digits.c_str() + e + 1);
  // CPython writes plain decimals for exponents in [-4, 16) and scientific ones outside.
  if (exponent < -4 || exponent >= 16) return digits;
  char plain[64];
  const auto fixed = std::to_chars(plain, plain + sizeof plain, value, std::chars_format::fixed);
  std::string out(plain, fixed.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

}  // namespace moray::jinja
