// Methods of strings, maps and lists. See jinja_builtins.h; string splitting is in jinja_split.h.
#include <algorithm>
#include <span>
#include <string>

#include "src/text/jinja_builtins.h"
#include "src/text/jinja_operators.h"
#include "src/text/jinja_print.h"
#include "src/text/jinja_split.h"
#include "src/text/python_text.h"

namespace moray::jinja {
namespace {

struct Call {
  const Value& receiver;
  const std::string& name;
  const CallArguments& arguments;
  Budget& budget;

  Result<std::vector<const Value*>> bind(std::initializer_list<std::string_view> names,
                                         size_t required = 0) const {
    return bind_arguments(arguments, std::string(type_name(receiver)) + "." + name + "()", names,
                          required);
  }
  Status wants(const char* what, const Value& found) const {
    return template_error(std::string(type_name(receiver)) + "." + name + "() expects " + what +
                          ", found " + type_name(found));
  }
  // An absent or none argument gives `fallback`.
  Result<int64_t> integer(const Value* value, int64_t fallback) const {
    if (value == nullptr || value->is<None>()) return fallback;
    if (!value->is_integer()) return wants("an integer", *value);
    return to_integer(*value);
  }
};

const MarkedText& text_of(const Call& call) {
  return *call.receiver.as<Text>().marked;
}

// Code points before byte `byte`, the unit of str.find().
int64_t code_points_before(const std::string& text, size_t byte) {
  return static_cast<int64_t>(code_point_count(std::string_view(text).substr(0, byte)));
}

Result<Value> strip(const Call& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"chars"}));
  const bool has_chars = bound[0] != nullptr && !bound[0]->is<None>();
  if (has_chars && !bound[0]->is_text()) return call.wants("a string", *bound[0]);
  const std::string_view chars = has_chars ? std::string_view(bound[0]->as<Text>().str()) : "";
  const MarkedText& text = text_of(call);
  RETURN_IF_ERROR(call.budget.charge_steps(
      value_weight(call.receiver) *
      (has_chars ? 32 * static_cast<int64_t>(std::min<size_t>(chars.size(), 1000) + 1) : 1)));
  std::string_view rest = text.text;
  if (call.name != "rstrip") rest = has_chars ? strip_left(rest, chars) : strip_left(rest);
  if (call.name != "lstrip") rest = has_chars ? strip_right(rest, chars) : strip_right(rest);
  if (rest.size() == text.text.size()) return Value{Text{call.receiver.as<Text>().marked}};
  const auto begin = static_cast<size_t>(rest.data() - text.text.data());
  return text_value(cut(text, begin, begin + rest.size()));
}

// startswith and endswith, with one affix or a tuple of them.
Result<Value> has_affix(const Call& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"affix"}, 1));
  const std::string& text = text_of(call).text;
  const auto matches = [&](const Value& affix) {
    const std::string& part = affix.as<Text>().str();
    return call.name == "startswith" ? text.starts_with(part) : text.ends_with(part);
  };
  if (bound[0]->is_text()) return Value{matches(*bound[0])};
  if (!bound[0]->is<SequenceRef>() || bound[0]->as<SequenceRef>()->kind != SequenceKind::kTuple) {
    return call.wants("a string or a tuple of strings", *bound[0]);
  }
  for (const Value& affix : bound[0]->as<SequenceRef>()->items) {
    RETURN_IF_ERROR(call.budget.charge_steps(value_weight(affix)));
    if (!affix.is_text()) return call.wants("a string or a tuple of strings", affix);
    if (matches(affix)) return Value{true};
  }
  return Value{false};
}

Result<Value> replace(const Call& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"old", "new", "count"}, 2));
  if (!bound[0]->is_text()) return call.wants("a string", *bound[0]);
  if (!bound[1]->is_text()) return call.wants("a string", *bound[1]);
  ASSIGN_OR_RETURN(const int64_t count, call.integer(bound[2], -1));
  ASSIGN_OR_RETURN(MarkedText out, replace_text(text_of(call), bound[0]->as<Text>().str(),
                                                *bound[1]->as<Text>().marked, count, call.budget));
  return text_value(std::move(out));
}

// find, rfind, index, rindex and count of a substring in the whole string.
Result<Value> search(const Call& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"sub"}, 1));
  if (!bound[0]->is_text()) return call.wants("a string", *bound[0]);
  const std::string& text = text_of(call).text;
  const std::string& sub = bound[0]->as<Text>().str();
  RETURN_IF_ERROR(call.budget.charge_steps(value_weight(call.receiver)));
  if (call.name == "count") {
    if (sub.empty()) return Value{code_points_before(text, text.size()) + 1};
    int64_t count = 0;
    for (size_t at = text.find(sub); at != std::string::npos;
         at = text.find(sub, at + sub.size())) {
      ++count;
    }
    return Value{count};
  }
  const size_t at = call.name[0] == 'r' ? text.rfind(sub) : text.find(sub);
  if (at != std::string::npos) return Value{code_points_before(text, at)};
  if (call.name == "index" || call.name == "rindex") {
    return template_error("str." + call.name + "() did not find the substring");
  }
  return Value{int64_t{-1}};
}

Result<Value> split(const Call& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"sep", "maxsplit"}));
  ASSIGN_OR_RETURN(const int64_t limit, call.integer(bound[1], -1));
  const SplitFrom from = call.name == "rsplit" ? SplitFrom::kRight : SplitFrom::kLeft;
  std::vector<ByteSpan> parts;
  if (bound[0] == nullptr || bound[0]->is<None>()) {
    ASSIGN_OR_RETURN(parts, split_at_space(text_of(call).text, limit, from, call.budget));
  } else {
    if (!bound[0]->is_text()) return call.wants("a string", *bound[0]);
    const std::string& separator = bound[0]->as<Text>().str();
    if (separator.empty()) return template_error("str.split() got an empty separator");
    ASSIGN_OR_RETURN(parts, split_at(text_of(call).text, separator, limit, from, call.budget));
  }
  return texts_of(text_of(call), parts, SequenceKind::kList, call.budget);
}

Result<Value> split_lines_call(const Call& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"keepends"}));
  const bool keeps_ends = bound[0] != nullptr && is_true(*bound[0]);
  ASSIGN_OR_RETURN(const auto lines, split_lines(text_of(call).text, keeps_ends, call.budget));
  return texts_of(text_of(call), lines, SequenceKind::kList, call.budget);
}

// (before, separator, after); without a match the whole string is the first, or the last part.
Result<Value> partition(const Call& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"sep"}, 1));
  if (!bound[0]->is_text()) return call.wants("a string", *bound[0]);
  const std::string& separator = bound[0]->as<Text>().str();
  if (separator.empty()) return template_error("str.partition() got an empty separator");
  const std::string& text = text_of(call).text;
  RETURN_IF_ERROR(call.budget.charge_steps(value_weight(call.receiver)));
  const bool from_right = call.name == "rpartition";
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  if (at == std::string::npos) {
    const ByteSpan whole{0, text.size()}, none{0, 0};
    return texts_of(text_of(call),
                    from_right ? std::vector{none, none, whole} : std::vector{whole, none, none},
                    SequenceKind::kTuple, call.budget);
  }
  const size_t after = at + separator.size();
  return texts_of(text_of(call), {{0, at}, {at, after}, {after, text.size()}}, SequenceKind::kTuple,
                  call.budget);
}

Result<Value> join(const Call& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"iterable"}, 1));
  ASSIGN_OR_RETURN(const SequenceRef items, iterate(*bound[0], call.budget));
  MarkedText out;
  for (size_t i = 0; i < items->items.size(); ++i) {
    const Value& item = items->items[i];
    if (!item.is_text()) return call.wants("strings only", item);
    RETURN_IF_ERROR(call.budget.charge_text(text_of(call)));
    RETURN_IF_ERROR(call.budget.charge_text(*item.as<Text>().marked));
    if (i > 0) append(out, text_of(call));
    append(out, *item.as<Text>().marked);
  }
  return text_value(std::move(out));
}

Result<Value> remove_affix(const Call& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"affix"}, 1));
  if (!bound[0]->is_text()) return call.wants("a string", *bound[0]);
  const std::string& affix = bound[0]->as<Text>().str();
  const MarkedText& text = text_of(call);
  RETURN_IF_ERROR(call.budget.charge_text(text));
  size_t begin = 0, end = text.text.size();
  if (call.name == "removeprefix" && text.text.starts_with(affix)) begin = affix.size();
  if (call.name == "removesuffix" && text.text.ends_with(affix)) end -= affix.size();
  return text_value(cut(text, begin, end));
}

// isspace, isalpha, isdecimal, isalnum: at least one character and all of the class.
Result<Value> is_class(const Call& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  const std::string& text = text_of(call).text;
  RETURN_IF_ERROR(call.budget.charge_steps(static_cast<int64_t>(text.size())));
  for (size_t i = 0; i < text.size(); i += code_point_bytes(text, i)) {
    const char32_t c = code_point_at(text, i);
    // Beyond ASCII, isdigit and isalnum also take numbers that are not decimals (such as U+00B2).
    if ((call.name == "isdigit" || call.name == "isalnum") && c >= 0x80 && !is_letter(c) &&
        !is_decimal(c)) {
      return unsupported("str." + call.name + "() beyond ASCII is not supported");
    }
    const bool belongs = call.name == "isspace"   ? is_space(c)
                         : call.name == "isalpha" ? is_letter(c)
                         : call.name == "isalnum" ? is_letter(c) || is_decimal(c)
                                                  : is_decimal(c);
    if (!belongs) return Value{false};
  }
  return Value{!text.empty()};
}

Result<Value> change_case_call(const Call& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  RETURN_IF_ERROR(call.budget.charge_steps(static_cast<int64_t>(text_of(call).text.size())));
  RETURN_IF_ERROR(call.budget.charge_text(text_of(call)));
  const Case target = call.name == "upper"   ? Case::kUpper
                      : call.name == "lower" ? Case::kLower
                      : call.name == "title" ? Case::kTitle
                                             : Case::kCapitalize;
  ASSIGN_OR_RETURN(MarkedText out, change_case(text_of(call), target));
  return text_value(std::move(out));
}

Result<Value> has_case_call(const Call& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  ASSIGN_OR_RETURN(const bool result,
                   call_test(call.name.substr(2), call.receiver, {}, call.budget));
  return Value{result};
}

Result<Value> map_get(const Call& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"key", "default"}, 1));
  RETURN_IF_ERROR(call.budget.charge_steps(value_weight(*bound[0])));
  if (!is_hashable(*bound[0])) return call.wants("a key", *bound[0]);
  const Map& map = *call.receiver.as<MapRef>();
  const Value* found = bound[0]->is_text() ? map.find(bound[0]->as<Text>().str()) : nullptr;
  if (found != nullptr) return *found;
  return bound[1] != nullptr ? *bound[1] : Value{None{}};
}

// keys(), values() and items(); items come as tuples.
Result<Value> map_view(const Call& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  const Map& map = *call.receiver.as<MapRef>();
  RETURN_IF_ERROR(call.budget.charge_items(3 * static_cast<int64_t>(map.entries.size())));
  std::vector<Value> items;
  for (const auto& [key, value] : map.entries) {
    if (call.name == "keys") {
      items.push_back(Value{key});
    } else if (call.name == "values") {
      items.push_back(value);
    } else {
      ASSIGN_OR_RETURN(Value pair, sequence_value(SequenceKind::kTuple, {Value{key}, value}));
      items.push_back(std::move(pair));
    }
  }
  const SequenceKind kind = call.name == "keys"     ? SequenceKind::kKeys
                            : call.name == "values" ? SequenceKind::kValues
                                                    : SequenceKind::kItems;
  return sequence_value(kind, std::move(items));
}

// list.count() and list.index().
Result<Value> sequence_search(const Call& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"value"}, 1));
  const Sequence& sequence = *call.receiver.as<SequenceRef>();
  RETURN_IF_ERROR(call.budget.charge_steps(sequence.weight));
  const auto same = [&](const Value& item) { return equals(item, *bound[0]); };
  if (call.name == "count") {
    return Value{int64_t{std::count_if(sequence.items.begin(), sequence.items.end(), same)}};
  }
  const auto found = std::find_if(sequence.items.begin(), sequence.items.end(), same);
  if (found == sequence.items.end()) return template_error("list.index() did not find the value");
  return Value{int64_t{found - sequence.items.begin()}};
}

Result<Value> copy(const Call& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  return call.receiver;
}

struct MethodEntry {
  std::string_view name;
  Result<Value> (*function)(const Call&);
};

constexpr MethodEntry kTextTable[] = {{"strip", strip},
                                      {"lstrip", strip},
                                      {"rstrip", strip},
                                      {"startswith", has_affix},
                                      {"endswith", has_affix},
                                      {"replace", replace},
                                      {"find", search},
                                      {"rfind", search},
                                      {"index", search},
                                      {"rindex", search},
                                      {"count", search},
                                      {"split", split},
                                      {"rsplit", split},
                                      {"splitlines", split_lines_call},
                                      {"partition", partition},
                                      {"rpartition", partition},
                                      {"join", join},
                                      {"removeprefix", remove_affix},
                                      {"removesuffix", remove_affix},
                                      {"isspace", is_class},
                                      {"isalpha", is_class},
                                      {"isalnum", is_class},
                                      {"isdigit", is_class},
                                      {"isdecimal", is_class},
                                      {"upper", change_case_call},
                                      {"lower", change_case_call},
                                      {"title", change_case_call},
                                      {"capitalize", change_case_call},
                                      {"islower", has_case_call},
                                      {"isupper", has_case_call}};
constexpr MethodEntry kMapTable[] = {{"get", map_get},
                                     {"items", map_view},
                                     {"keys", map_view},
                                     {"values", map_view},
                                     {"copy", copy}};
constexpr MethodEntry kSequenceTable[] = {
    {"count", sequence_search}, {"index", sequence_search}, {"copy", copy}};

}  // namespace

Result<Value> call_method(const Method& method, const CallArguments& arguments, Budget& budget) {
  const Value& receiver = *method.receiver;
  const Call call{receiver, method.name, arguments, budget};
  RETURN_IF_ERROR(budget.charge_steps(1));
  std::span<const MethodEntry> table = kSequenceTable;
  if (receiver.is_text()) {
    if (receiver.as<Text>().is_safe)
      return unsupported("a method of a safe string is not supported");
    table = kTextTable;
  } else if (receiver.is<MapRef>()) {
    table = kMapTable;
  }
  for (const MethodEntry& entry : table) {
    if (entry.name == method.name) return entry.function(call);
  }
  return unsupported(std::string("method ") + type_name(receiver) + "." + method.name +
                     "() is not supported");
}

}  // namespace moray::jinja
