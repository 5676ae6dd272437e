// Values as text: Python's str() and repr(), and JSON as transformers' `tojson` writes it.
//
// Marks: characters of a string keep theirs, escapes take the mark of what they escape; brackets,
// commas, numbers and names such as True are scaffold, since none of them can spell a token.
#pragma once

#include <optional>
#include <string>

#include "src/base/status.h"
#include "src/text/jinja_budget.h"
#include "src/text/jinja_value.h"

namespace moray::jinja {

// str(value): strings as they are, '' for undefined, "None", "True", "[1, 'a']", ...
// Errors: kUnsupported for values whose Python text has no meaning (functions, generators).
Result<Text> to_text(const Value& value, Budget& budget);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // one level of indentation; absent: a single line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// json.dumps(value). Errors: kInvalidArgument for what JSON cannot hold (undefined, functions).
Result<MarkedText> to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace moray::jinja
