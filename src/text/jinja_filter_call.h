// What every filter implementation is handed, and the helpers they share. For the filter files
// only.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/jinja_builtins.h"
#include "src/text/jinja_operators.h"
#include "src/text/jinja_print.h"

namespace moray::jinja {

struct FilterCall {
  const Value& input;
  std::string_view name;
  const CallArguments& arguments;
  Budget& budget;

  Result<std::vector<const Value*>> bind(std::initializer_list<std::string_view> names,
                                         size_t required = 0) const {
    return bind_arguments(arguments, "filter '" + std::string(name) + "'", names, required);
  }
  Status wants(const char* what, const Value& found) const {
    if (found.is_undefined()) return undefined_error(found);
    return template_error("filter '" + std::string(name) + "' expects " + what + ", found " +
                          type_name(found));
  }
  // The input as Python's str().
  Result<Text> text() const { return to_text(input, budget); }
};

struct FilterEntry {
  std::string_view name;
  Result<Value> (*function)(const FilterCall&);
};

// The dotted path of an `attribute` argument: numbers index, names look up.
Result<std::vector<Value>> attribute_path(const FilterCall& call, const Value& attribute);
// item[path[0]][path[1]]..., undefined steps replaced by `fallback` if not null.
Result<Value> follow_path(Value item, const std::vector<Value>& path, const Value* fallback);

// Filters over lists and maps (jinja_filters_list.cpp), or null.
const FilterEntry* find_list_filter(std::string_view name);

}  // namespace moray::jinja
