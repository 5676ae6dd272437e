// JSON text to template values, for the parts of a request that a template sees.
//
// Invariant: as Python's json module reads it: key order is kept, a repeated key keeps its first
// place and its last value, integers of any size keep their digits. All strings are content.
#pragma once

#include <string_view>

#include "src/base/status.h"
#include "src/text/jinja_value.h"

namespace moray {

// `what` names the text in errors ("messages: not valid JSON at byte 12").
// Errors: kInvalidArgument for bad JSON, invalid UTF-8, lone surrogates and nesting beyond 100.
Result<jinja::Value> parse_json_value(std::string_view json, std::string_view what);

}  // namespace moray
