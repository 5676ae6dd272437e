// Expressions of the template grammar; statements are in jinja_parser.h.
#pragma once

#include <initializer_list>
#include <string_view>

#include "src/base/status.h"
#include "src/text/jinja_ast.h"
#include "src/text/jinja_token_stream.h"

namespace moray::jinja {

enum class Ternary { kAllowed, kNotHere };  // `for x in y if z` and `if x` take no ternary

// One expression, or a tuple where commas follow without parentheses.
Result<ExprPtr> parse_tuple(TokenStream& tokens, Ternary ternary = Ternary::kAllowed);
Result<ExprPtr> parse_expression(TokenStream& tokens, Ternary ternary = Ternary::kAllowed);
// `name`, `name.attribute`, or a tuple of them.
enum class NamespaceTarget { kAllowed, kNotHere };
Result<ExprPtr> parse_target(TokenStream& tokens, NamespaceTarget namespace_target);
// "| a | b(1)" or, without the first bar, "a | b(1)": filters over a null input, for block forms.
Result<ExprPtr> parse_filter_chain(TokenStream& tokens);

}  // namespace moray::jinja
