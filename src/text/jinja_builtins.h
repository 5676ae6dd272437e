// What templates can call by name: filters, tests and methods of values.
//
// Invariant: a name is either known here and behaves as in jinja2 3.1 with Python's types, or is
// refused with its name; nothing is approximated. Errors come without a line (the evaluator adds
// it). All loops charge the budget first. Functions that need the evaluator are in jinja_eval.cpp.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/text/jinja_budget.h"
#include "src/text/jinja_value.h"

namespace moray::jinja {

struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

// The arguments in the order of `names`, null where absent; the first `required` must be there.
// `callee` names the call in errors. The pointers live as long as `arguments`.
Result<std::vector<const Value*>> bind_arguments(const CallArguments& arguments,
                                                 std::string_view callee,
                                                 std::initializer_list<std::string_view> names,
                                                 size_t required = 0);

bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);

// input | name(arguments)
Result<Value> call_filter(std::string_view name, const Value& input, const CallArguments& arguments,
                          Budget& budget);
// input is name(arguments)
Result<bool> call_test(std::string_view name, const Value& input, const CallArguments& arguments,
                       Budget& budget);
// receiver.name(arguments)
Result<Value> call_method(const Method& method, const CallArguments& arguments, Budget& budget);

// Whether Python has a public method `name` on the value's type, supported here or not.
bool has_method(const Value& value, std::string_view name);

// object.name: a method first, then a key, else undefined; using undefined itself is an error.
Result<Value> get_attribute(const Value& object, const std::string& name);
// object[key]: a key or index first, then a method, else undefined.
Result<Value> get_item(const Value& object, const Value& key);

}  // namespace moray::jinja
