// The template scanner. See jinja_lexer.h.
#include "src/text/jinja_lexer.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>

#include "src/text/marked_text.h"
#include "src/text/python_text.h"
#include "src/text/utf8.h"

namespace moray::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_name_part(char c) {
  return is_name_start(c) || is_digit(c);
}
// Octal digits an escape may hold, after its first.
bool is_octal(char c) {
  return c >= '0' && c <= '7';
}

Status syntax_error(int line, const std::string& message) {
  return Status(StatusCode::kInvalidFile,
                "chat template line " + std::to_string(line) + ": " + message);
}

// \r\n and \r become \n; one newline at the very end is dropped.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Scanner {
 public:
  explicit Scanner(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> scan() {
    while (position_ < source_.size()) RETURN_IF_ERROR(scan_data());
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool at(std::string_view text) const {
    return source_.compare(position_, text.size(), text) == 0;
  }
  char peek(size_t ahead = 0) const {
    return position_ + ahead < source_.size() ? source_[position_ + ahead] : '\0';
  }
  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }
  // Moves on, counting lines.
  void advance(size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) line_ += source_[position_ + i] == '\n';
    position_ += bytes;
  }
  void skip_space() {
    const std::string_view rest = std::string_view(source_).substr(position_);
    advance(rest.size() - strip_left(rest).size());
  }

  Status scan_data();
  Status scan_comment();
  Status scan_tag(TokenKind begin, TokenKind end, std::string_view closer);
  bool scan_closer(std::string_view closer, bool trims_newline);
  Status scan_raw(size_t tag_bytes);
  size_t raw_tag_bytes(size_t start, std::string_view word) const;
  void push_data(std::string_view text, char sign, bool is_variable);
  Status scan_token();
  Status scan_string();
  Status unescape(std::string_view body, std::string& out);
  Status scan_number();
  Status scan_operator();

  std::string source_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // whether the match before ended with a newline
  std::string brackets_;       // closers still owed inside the tag at hand
  std::vector<Token> tokens_;
};

// Emits the text before a tag, stripped as the tag's sign and lstrip_blocks ask.
void Scanner::push_data(std::string_view text, char sign, bool is_variable) {
  const int line = line_;
  if (sign == '-') {
    text = strip_right(text);
  } else if (sign != '+' && !is_variable) {
    const size_t newline = text.rfind('\n');
    const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
    if ((start > 0 || line_starting_) && strip_left(text.substr(start)).empty()) {
      text = text.substr(0, start);
    }
  }
  if (!text.empty()) tokens_.push_back({TokenKind::kData, line, std::string(text)});
}

Status Scanner::scan_data() {
  size_t tag = position_;
  while (true) {
    tag = source_.find('{', tag);
    if (tag == std::string::npos || tag + 1 >= source_.size()) {
      push(TokenKind::kData, source_.substr(position_));
      position_ = source_.size();
      return Status();
    }
    if (std::strchr("{%#", source_[tag + 1]) != nullptr && source_[tag + 1] != '\0') break;
    ++tag;
  }
  const char kind = source_[tag + 1];
  const size_t raw_bytes = kind == '%' ? raw_tag_bytes(tag, "raw") : 0;
  const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
  const bool has_sign = sign == '-' || sign == '+';
  push_data(std::string_view(source_).substr(position_, tag - position_), sign, kind == '{');
  advance(tag - position_);
  if (raw_bytes > 0) return scan_raw(raw_bytes);
  advance(has_sign ? 3 : 2);
  line_starting_ = false;
  if (kind == '#') return scan_comment();
  if (kind == '{') return scan_tag(TokenKind::kVariableBegin, TokenKind::kVariableEnd, "}}");
  return scan_tag(TokenKind::kBlockBegin, TokenKind::kBlockEnd, "%}");
}

// Bytes of a `{% word %}` tag at `start`, or 0 if something else stands there. A tag that opens raw
// text keeps the newline after it, except with a minus sign.
size_t Scanner::raw_tag_bytes(size_t start, std::string_view word) const {
  size_t i = start + 2;
  if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) ++i;
  const auto skip = [&] {
    const std::string_view rest = std::string_view(source_).substr(i);
    i += rest.size() - strip_left(rest).size();
  };
  skip();
  if (source_.compare(i, word.size(), word) != 0) return 0;
  i += word.size();
  skip();
  const bool is_end = word == "endraw";
  if (source_.compare(i, 3, "-%}") == 0) {
    i += 3;
    skip();
  } else if (is_end && source_.compare(i, 3, "+%}") == 0) {
    i += 3;
  } else if (source_.compare(i, 2, "%}") == 0) {
    i += 2;
    if (is_end && i < source_.size() && source_[i] == '\n') ++i;
  } else {
    return 0;
  }
  return i - start;
}

Status Scanner::scan_raw(size_t tag_bytes) {
  const int opened = line_;
  advance(tag_bytes);
  line_starting_ = source_[position_ - 1] == '\n';
  for (size_t tag = source_.find("{%", position_); tag != std::string::npos;
       tag = source_.find("{%", tag + 1)) {
    const size_t end_bytes = raw_tag_bytes(tag, "endraw");
    if (end_bytes == 0) continue;
    push_data(std::string_view(source_).substr(position_, tag - position_), source_[tag + 2],
              false);
    advance(tag + end_bytes - position_);
    line_starting_ = source_[position_ - 1] == '\n';
    return Status();
  }
  return syntax_error(opened, "a raw block is not closed by {% endraw %}");
}

Status Scanner::scan_comment() {
  const int opened = line_;
  while (position_ < source_.size()) {
    if (scan_closer("#}", true)) return Status();
    advance(1);
  }
  return syntax_error(opened, "a comment is not closed by #}");
}

// Consumes `closer` with an optional sign and the whitespace that goes with it, if it stands here.
bool Scanner::scan_closer(std::string_view closer, bool trims_newline) {
  const char sign = peek();
  const bool is_signed = (sign == '-' || (sign == '+' && trims_newline)) &&
                         source_.compare(position_ + 1, closer.size(), closer) == 0;
  if (!is_signed && !at(closer)) return false;
  advance(closer.size() + (is_signed ? 1 : 0));
  if (is_signed && sign == '-') {
    skip_space();
  } else if (!is_signed && trims_newline && peek() == '\n') {
    advance(1);
  }
  line_starting_ = source_[position_ - 1] == '\n';
  return true;
}

Status Scanner::scan_tag(TokenKind begin, TokenKind end, std::string_view closer) {
  const int opened = line_;
  push(begin, "");
  brackets_.clear();
  while (position_ < source_.size()) {
    if (brackets_.empty()) {
      const int line = line_;
      if (scan_closer(closer, end == TokenKind::kBlockEnd)) {
        tokens_.push_back({end, line, ""});
        return Status();
      }
    }
    RETURN_IF_ERROR(scan_token());
  }
  return syntax_error(opened, "a tag is not closed by " + std::string(closer));
}

Status Scanner::scan_token() {
  const char c = peek();
  if (strip_left(std::string_view(source_).substr(position_, code_point_bytes(source_, position_)))
          .empty()) {
    skip_space();
    return Status();
  }
  if (is_digit(c)) return scan_number();
  if (is_name_start(c)) {
    size_t bytes = 1;
    while (is_name_part(peek(bytes))) ++bytes;
    push(TokenKind::kName, source_.substr(position_, bytes));
    position_ += bytes;
    return Status();
  }
  if (c == '\'' || c == '"') return scan_string();
  return scan_operator();
}

Status Scanner::scan_operator() {
  static constexpr std::string_view kOperators[] = {
      "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
      "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
  for (std::string_view op : kOperators) {
    if (!at(op)) continue;
    if (op == "(") brackets_ += ')';
    if (op == "[") brackets_ += ']';
    if (op == "{") brackets_ += '}';
    if (op == ")" || op == "]" || op == "}") {
      if (brackets_.empty() || brackets_.back() != op[0]) {
        return syntax_error(line_, fmt::format("'{}' closes nothing that was opened", op));
      }
      brackets_.pop_back();
    }
    push(TokenKind::kOperator, std::string(op));
    position_ += op.size();
    return Status();
  }
  const size_t bytes = code_point_bytes(source_, position_);
  return syntax_error(line_, "unexpected character '" + source_.substr(position_, bytes) + "'");
}

// Decimal digits with single underscores between them, as Python writes numbers.
Status Scanner::scan_number() {
  std::string digits;
  size_t i = 0;
  const auto take_digits = [&] {
    while (is_digit(peek(i)) || (peek(i) == '_' && is_digit(peek(i + 1)))) {
      if (peek(i) != '_') digits += peek(i);
      ++i;
    }
  };
  take_digits();
  const bool follows_dot = position_ > 0 && source_[position_ - 1] == '.';
  bool is_float = false;
  if (!follows_dot && peek(i) == '.' && is_digit(peek(i + 1))) {
    is_float = true;
    digits += '.';
    ++i;
    take_digits();
  }
  const size_t sign = peek(i + 1) == '+' || peek(i + 1) == '-' ? 1 : 0;
  if (!follows_dot && (peek(i) == 'e' || peek(i) == 'E') && is_digit(peek(i + 1 + sign))) {
    is_float = true;
    digits += source_.substr(position_ + i, 1 + sign);
    i += 1 + sign;
    take_digits();
  }
  if (is_name_part(peek(i)) || (!is_float && digits.size() > 1 && digits[0] == '0')) {
    return syntax_error(line_, "number '" + source_.substr(position_, i + 1) +
                                   "' is not plain decimal, which is all that is supported");
  }
  Token token{is_float ? TokenKind::kFloat : TokenKind::kInteger, line_, digits};
  const char* end = digits.data() + digits.size();
  const auto parsed = is_float ? std::from_chars(digits.data(), end, token.real)
                               : std::from_chars(digits.data(), end, token.integer);
  if (parsed.ec != std::errc()) return syntax_error(line_, "number " + digits + " is out of range");
  tokens_.push_back(std::move(token));
  position_ += i;
  return Status();
}

Status Scanner::scan_string() {
  const char quote = peek();
  size_t end = position_ + 1;
  while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
  if (end >= source_.size()) return syntax_error(line_, "a string is not closed");
  std::string value;
  RETURN_IF_ERROR(
      unescape(std::string_view(source_).substr(position_ + 1, end - position_ - 1), value));
  push(TokenKind::kString, std::move(value));
  advance(end + 1 - position_);
  return Status();
}

// Python's escapes in ordinary strings; an unknown one keeps its backslash.
Status Scanner::unescape(std::string_view body, std::string& out) {
  static constexpr std::string_view kFrom = "\\'\"abfnrtv";
  static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\') {
      out += body[i];
      continue;
    }
    const char c = body[++i];
    if (c == '\n') continue;
    if (const size_t known = kFrom.find(c); known != std::string_view::npos) {
      out += kTo[known];
      continue;
    }
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    int base = 16;
    if (is_octal(c)) {
      base = 8;
      digits = 1;
      while (digits < 3 && i + digits < body.size() && is_octal(body[i + digits])) ++digits;
      --i;
    } else if (digits == 0) {
      if (c == 'N' || static_cast<uint8_t>(c) >= 0x80) {
        return syntax_error(line_, "string escape '\\" +
                                       std::string(body.substr(i, code_point_bytes(body, i))) +
                                       "' is not supported");
      }
      out += '\\';
      out += c;
      continue;
    }
    const std::string_view number = body.substr(i + 1, digits);
    uint32_t value = 0;
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), value, base);
    const bool is_whole = parsed.ptr == number.data() + number.size() && number.size() == digits;
    if (parsed.ec != std::errc() || !is_whole || value > 0x10FFFF ||
        (value >= 0xD800 && value < 0xE000)) {
      return syntax_error(line_, "a string escape is not a Unicode character");
    }
    append_character(out, value);
    i += digits;
  }
  return Status();
}

}  // namespace

Result<std::vector<Token>> tokenize_template(std::string_view source) {
  if (const size_t bad = first_invalid_byte(source); bad != std::string_view::npos) {
    return Status(StatusCode::kInvalidFile,
                  "chat template: byte " + std::to_string(bad) + " is not valid UTF-8");
  }
  return Scanner(normalize_newlines(source)).scan();
}

}  // namespace moray::jinja
