// Template source to syntax tree, with jinja2's grammar and precedence.
//
// The subset is what chat templates use (docs of ChatTemplate in text.h); everything else is
// refused here, by name and line, before any conversation is rendered: unknown tags, filters and
// tests, call blocks, recursive loops, star arguments, macros that are not at the top level.
#pragma once

#include <string_view>

#include "src/base/status.h"
#include "src/text/jinja_ast.h"

namespace moray::jinja {

// Levels of one expression and of nested blocks. Real templates stay below 20.
inline constexpr int kMaxExpressionDepth = 200;
inline constexpr int kMaxBlockDepth = 50;
inline constexpr size_t kMaxArguments = 32;

// Errors: kInvalidFile for bad syntax, kUnsupported for constructs outside the subset.
Result<Block> parse_template(std::string_view source);

}  // namespace moray::jinja
