// Cuts template source into tokens, with whitespace handled as transformers configures jinja2
// (trim_blocks and lstrip_blocks on, keep_trailing_newline off).
//
// Invariant: data tokens are exactly the bytes the template prints; comments and trimmed whitespace
// are gone. `{% raw %}` becomes plain data here. Line statements do not exist in this
// configuration. Method: the token rules of jinja2 3.1 (its documentation and observed behaviour),
// as a scanner.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace moray::jinja {

enum class TokenKind {
  kData,           // text between tags
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kName,
  kString,    // text: the unescaped value
  kInteger,   // integer
  kFloat,     // real
  kOperator,  // text: one of + - / // * % ** ~ [ ] ( ) { } == != > >= < <= = . : | , ;
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;  // from 1
  std::string text;
  int64_t integer = 0;
  double real = 0;
};

// All tokens, closed by kEnd. Errors name the line and the offending character or tag.
Result<std::vector<Token>> tokenize_template(std::string_view source);

}  // namespace moray::jinja
