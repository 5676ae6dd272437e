// A cursor over template tokens with the questions a parser asks. Used by the two parser files
// only.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/text/jinja_lexer.h"

namespace moray::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(position_ + ahead, tokens_.size() - 1)];
  }
  int line() const { return peek().line; }
  Token take() {
    Token token = peek();
    if (position_ + 1 < tokens_.size()) ++position_;
    return token;
  }

  bool at(TokenKind kind) const { return peek().kind == kind; }
  bool at_operator(std::string_view op, size_t ahead = 0) const {
    return peek(ahead).kind == TokenKind::kOperator && peek(ahead).text == op;
  }
  bool at_word(std::string_view word, size_t ahead = 0) const {
    return peek(ahead).kind == TokenKind::kName && peek(ahead).text == word;
  }
  bool at_any_word(std::initializer_list<std::string_view> words) const {
    return std::any_of(words.begin(), words.end(), [&](auto word) { return at_word(word); });
  }

  bool skip_operator(std::string_view op) { return at_operator(op) && (take(), true); }
  bool skip_word(std::string_view word) { return at_word(word) && (take(), true); }

  Status expect_operator(std::string_view op) {
    return skip_operator(op) ? Status() : unexpected(fmt::format("'{}'", op));
  }
  Status expect_word(std::string_view word) {
    return skip_word(word) ? Status() : unexpected(fmt::format("'{}'", word));
  }
  Result<std::string> expect_name() {
    if (!at(TokenKind::kName)) return unexpected("a name");
    return take().text;
  }

  // "chat template line 3: expected a name, found ','".
  Status unexpected(const std::string& expected) const {
    return error("expected " + expected + ", found " + describe(peek()));
  }
  Status error(const std::string& message) const {
    return Status(StatusCode::kInvalidFile, at_line(line(), message));
  }
  static std::string at_line(int line, const std::string& message) {
    return "chat template line " + std::to_string(line) + ": " + message;
  }

 private:
  static std::string describe(const Token& token) {
    switch (token.kind) {
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kBlockEnd:
        return "'%}'";
      case TokenKind::kVariableEnd:
        return "'}}'";
      case TokenKind::kString:
        return "a string";
      case TokenKind::kData:
        return "text";
      case TokenKind::kVariableBegin:
        return "'{{'";
      case TokenKind::kBlockBegin:
        return "'{%'";
      default:
        return "'" + token.text + "'";
    }
  }

  std::vector<Token> tokens_;
  size_t position_ = 0;
};

}  // namespace moray::jinja
