// The declared tools, as far as reading a call needs them: names, parameters and their types.
//
// Invariant: a parameter's JSON comes from its declared type, never from how the text looks; only
// a parameter without a declared type is guessed, and then only as an object or an array.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace moray {

enum class JsonType { kString, kNull, kBoolean, kInteger, kNumber, kObject, kArray };

class ToolSchemas {
 public:
  ToolSchemas() = default;  // no tools

  // From a request's `tools`: [{"type":"function","function":{"name","parameters"}}] or the inner
  // objects alone; other tool types are skipped. Empty text: no tools. Errors: kInvalidArgument for
  // what is not JSON of this kind or nests deeper than 100.
  static Result<ToolSchemas> parse(std::string_view tools);

  bool empty() const { return functions_.empty(); }
  bool has(std::string_view function) const { return functions_.contains(function); }
  bool has(std::string_view function, std::string_view parameter) const;

  // The JSON text of a parameter that the model wrote as `text`: the first declared type that the
  // text spells, in the schema's order; a string where none fits. Invalid UTF-8 becomes U+FFFD.
  std::string to_json(std::string_view function, std::string_view parameter,
                      std::string_view text) const;

 private:
  using Types = std::vector<JsonType>;  // in order of preference; empty: none declared
  std::map<std::string, std::map<std::string, Types, std::less<>>, std::less<>> functions_;
};

// `text` as a JSON string with its quotes; invalid UTF-8 becomes U+FFFD.
std::string quote_json(std::string_view text);

}  // namespace moray
