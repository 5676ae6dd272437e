// Python's ideas about text that templates rely on: whitespace, letter case, printable characters,
// how a float is written.
//
// Invariant: results are those of CPython's str for every input accepted here; the few characters
// whose case mapping changes their number or depends on their neighbours are refused, not guessed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/text/marked_text.h"

namespace moray::jinja {

// str.isspace() of one code point.
bool is_space(char32_t code_point);
// Without whitespace at the start, or at the end.
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);
// The same for any of the code points of `chars`.
std::string_view strip_left(std::string_view text, std::string_view chars);
std::string_view strip_right(std::string_view text, std::string_view chars);

enum class Case { kUpper, kLower, kTitle, kCapitalize };
// str.upper(), .lower(), .title() and .capitalize(), marks following each character.
// Errors: kUnsupported for the characters named in the file head.
Result<MarkedText> change_case(const MarkedText& text, Case target);

// str.isprintable() of one code point; repr() escapes all others.
bool is_printable(char32_t code_point);
// The classes behind str.isalpha(), .isdecimal(), .islower() and .isupper().
bool is_letter(char32_t code_point);
bool is_decimal(char32_t code_point);
bool is_lower(char32_t code_point);
bool is_upper(char32_t code_point);

// repr(float): the shortest digits that read back, "1.0", "1e+16", "inf", "nan".
std::string float_repr(double value);

}  // namespace moray::jinja
