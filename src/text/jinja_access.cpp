// Attributes and items of values, as jinja2's sandboxed environment looks them up.
//
// `object.name` prefers a method of Python's type over a key of the same name; `object["name"]` the
// other way round. That is why `schema.items` is a method in a template, here as there.
#include <algorithm>
#include <array>

#include "src/text/jinja_builtins.h"
#include "src/text/jinja_operators.h"

namespace moray::jinja {
namespace {

// Public methods of Python 3.11's types, so that one we lack is an error and not "undefined".
constexpr std::array kTextMethods = std::to_array<std::string_view>(
    {"capitalize",   "casefold",    "center",    "count",      "encode",       "endswith",
     "expandtabs",   "find",        "format",    "format_map", "index",        "isalnum",
     "isalpha",      "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
     "isnumeric",    "isprintable", "isspace",   "istitle",    "isupper",      "join",
     "ljust",        "lower",       "lstrip",    "maketrans",  "partition",    "removeprefix",
     "removesuffix", "replace",     "rfind",     "rindex",     "rjust",        "rpartition",
     "rsplit",       "rstrip",      "split",     "splitlines", "startswith",   "strip",
     "swapcase",     "title",       "translate", "upper",      "zfill"});
constexpr std::array kMapMethods =
    std::to_array<std::string_view>({"clear", "copy", "fromkeys", "get", "items", "keys", "pop",
                                     "popitem", "setdefault", "update", "values"});
constexpr std::array kListMethods =
    std::to_array<std::string_view>({"append", "clear", "copy", "count", "extend", "index",
                                     "insert", "pop", "remove", "reverse", "sort"});
constexpr std::array kTupleMethods = std::to_array<std::string_view>({"count", "index"});

template <size_t N>
bool has(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value method_of(const Value& receiver, std::string name) {
  return {Method{std::make_shared<const Value>(receiver), std::move(name)}};
}

Value missing(const Value& object, const std::string& name) {
  return undefined(std::string("a ") + type_name(object) + " has no attribute or key '" + name +
                   "'");
}

// The key of a map or attribute of a namespace, or null.
const Value* find_key(const Value& object, std::string_view name) {
  if (object.is<MapRef>()) return object.as<MapRef>()->find(name);
  if (object.is<Namespace*>()) return object.as<Namespace*>()->attributes.find(name);
  return nullptr;
}

Result<Value> item_at(const Value& object, int64_t index) {
  const std::string name = std::to_string(index);
  if (object.is_text()) {
    const MarkedText& text = *object.as<Text>().marked;
    const auto offsets = code_point_offsets(text.text);
    const auto size = static_cast<int64_t>(offsets.size()) - 1;
    if (index < 0) index += size;
    if (index < 0 || index >= size) return missing(object, name);
    const auto i = static_cast<size_t>(index);
    return text_value(cut(text, offsets[i], offsets[i + 1]));
  }
  if (!object.is<SequenceRef>()) return missing(object, name);
  const Sequence& sequence = *object.as<SequenceRef>();
  if (sequence.kind > SequenceKind::kRange) return missing(object, name);
  const auto size = static_cast<int64_t>(sequence.items.size());
  if (index < 0) index += size;
  if (index < 0 || index >= size) return missing(object, name);
  return sequence.items[static_cast<size_t>(index)];
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  if (value.is_text()) return has(kTextMethods, name);
  if (value.is<MapRef>()) return has(kMapMethods, name);
  if (!value.is<SequenceRef>()) return false;
  const SequenceKind kind = value.as<SequenceRef>()->kind;
  if (kind == SequenceKind::kList) return has(kListMethods, name);
  return (kind == SequenceKind::kTuple || kind == SequenceKind::kRange) && has(kTupleMethods, name);
}

Result<Value> get_attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) return undefined_error(object);
  if (has_method(object, name)) return method_of(object, name);
  const Value* value = find_key(object, name);
  return value != nullptr ? *value : missing(object, name);
}

Result<Value> get_item(const Value& object, const Value& key) {
  if (object.is_undefined()) return undefined_error(object);
  if (key.is_integer()) return item_at(object, to_integer(key));
  if (!key.is_text()) {
    if (key.is_undefined()) return undefined(std::string("an undefined key is looked up"));
    return undefined(std::string("a ") + type_name(object) + " has no item with a key of type " +
                     type_name(key));
  }
  const std::string& name = key.as<Text>().str();
  if (const Value* value = find_key(object, name)) return *value;
  return has_method(object, name) ? method_of(object, name) : missing(object, name);
}

}  // namespace moray::jinja
