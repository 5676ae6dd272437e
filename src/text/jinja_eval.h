// Runs a parsed template over its variables and returns the marked text it prints.
//
// Invariants: the syntax tree and the input values are never changed, so one template may be
// rendered by many threads at once; every rendering is bounded in steps, bytes and depth
// (jinja_budget.h). Scopes follow jinja2: loops, macros and blocks have their own, `if` has not;
// assignments inside do not leak out, namespaces carry them.
#pragma once

#include <cstdint>

#include "src/base/status.h"
#include "src/text/jinja_ast.h"
#include "src/text/jinja_value.h"
#include "src/text/marked_text.h"

namespace moray::jinja {

// Errors name the template line: kInvalidArgument for what the template refuses or cannot do with
// these variables, kUnsupported for constructs outside the subset, kExhausted for the bounds.
// `now_unix_s` is what strftime_now reads, in local time.
Result<MarkedText> render(const Block& program, const Map& variables, int64_t now_unix_s);

}  // namespace moray::jinja
