// Filters over lists, maps and generators. See jinja_builtins.h.
//
// map, select, reject, unique and items give generators in jinja2. They are computed at once here
// and handed out once; a template can tell the difference only by an error, which therefore waits.
#include <algorithm>
#include <cmath>
#include <optional>

#include "src/text/jinja_builtins.h"
#include "src/text/jinja_filter_call.h"
#include "src/text/jinja_split.h"
#include "src/text/python_text.h"

namespace moray::jinja {
namespace {

Result<Value> join(const FilterCall& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"d", "attribute"}));
  std::vector<Value> path;
  if (bound[1] != nullptr && !bound[1]->is<None>()) {
    ASSIGN_OR_RETURN(path, attribute_path(call, *bound[1]));
  }
  Text separator{std::make_shared<const MarkedText>()};
  if (bound[0] != nullptr) {
    ASSIGN_OR_RETURN(separator, to_text(*bound[0], call.budget));
  }
  ASSIGN_OR_RETURN(const SequenceRef items, iterate(call.input, call.budget));
  MarkedText out;
  for (size_t i = 0; i < items->items.size(); ++i) {
    ASSIGN_OR_RETURN(const Value item, follow_path(items->items[i], path, nullptr));
    ASSIGN_OR_RETURN(const Text text, to_text(item, call.budget));
    RETURN_IF_ERROR(call.budget.charge_text(*text.marked));
    RETURN_IF_ERROR(call.budget.charge_text(*separator.marked));
    RETURN_IF_ERROR(call.budget.charge_steps(1));
    if (i > 0) append(out, *separator.marked);
    append(out, *text.marked);
  }
  return text_value(std::move(out));
}

// first and last: an empty input gives undefined.
Result<Value> first(const FilterCall& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  if (call.input.is_text() && !call.input.as<Text>().str().empty()) {
    return get_item(call.input, Value{int64_t{0}});
  }
  ASSIGN_OR_RETURN(const SequenceRef items, iterate(call.input, call.budget));
  if (items->items.empty()) return undefined("the first item of an empty sequence is used");
  return items->items.front();
}

Result<Value> last(const FilterCall& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  if (call.input.is<SequenceRef>() &&
      call.input.as<SequenceRef>()->kind == SequenceKind::kIterator) {
    return call.wants("a list", call.input);
  }
  ASSIGN_OR_RETURN(const SequenceRef items, iterate(call.input, call.budget));
  if (items->items.empty()) return undefined("the last item of an empty sequence is used");
  return items->items.back();
}

Result<Value> list(const FilterCall& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  ASSIGN_OR_RETURN(const SequenceRef items, iterate(call.input, call.budget));
  RETURN_IF_ERROR(call.budget.charge_items(static_cast<int64_t>(items->items.size())));
  return sequence_value(SequenceKind::kList, items->items);
}

Result<Value> reverse(const FilterCall& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  if (call.input.is_text()) return slice(call.input, {std::nullopt, std::nullopt, -1}, call.budget);
  ASSIGN_OR_RETURN(const SequenceRef items, iterate(call.input, call.budget));
  RETURN_IF_ERROR(call.budget.charge_items(static_cast<int64_t>(items->items.size())));
  return sequence_value(SequenceKind::kIterator, {items->items.rbegin(), items->items.rend()});
}

Result<Value> items(const FilterCall& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  if (call.input.is_undefined()) return sequence_value(SequenceKind::kIterator, {});
  if (!call.input.is<MapRef>()) return call.wants("a mapping", call.input);
  const Method method{std::make_shared<const Value>(call.input), "items"};
  ASSIGN_OR_RETURN(const Value view, call_method(method, {}, call.budget));
  return sequence_value(SequenceKind::kIterator, view.as<SequenceRef>()->items);
}

Result<Value> map(const FilterCall& call) {
  // As in jinja2, an empty input is not asked what should be done with its items.
  if (!is_true(call.input)) return sequence_value(SequenceKind::kIterator, {});
  ASSIGN_OR_RETURN(const SequenceRef inputs, iterate(call.input, call.budget));
  RETURN_IF_ERROR(call.budget.charge_items(static_cast<int64_t>(inputs->items.size())));
  std::vector<Value> out;
  out.reserve(inputs->items.size());
  if (call.arguments.positional.empty()) {
    ASSIGN_OR_RETURN(const auto bound, call.bind({"attribute", "default"}, 1));
    ASSIGN_OR_RETURN(const std::vector<Value> path, attribute_path(call, *bound[0]));
    const Value* fallback = bound[1] != nullptr && !bound[1]->is<None>() ? bound[1] : nullptr;
    for (const Value& item : inputs->items) {
      ASSIGN_OR_RETURN(Value result, follow_path(item, path, fallback));
      out.push_back(std::move(result));
    }
  } else {
    if (!call.arguments.positional[0].is_text()) {
      return call.wants("the name of a filter", call.arguments.positional[0]);
    }
    CallArguments rest = call.arguments;
    const std::string name = rest.positional[0].as<Text>().str();
    rest.positional.erase(rest.positional.begin());
    for (const Value& item : inputs->items) {
      ASSIGN_OR_RETURN(Value result, call_filter(name, item, rest, call.budget));
      out.push_back(std::move(result));
    }
  }
  return sequence_value(SequenceKind::kIterator, std::move(out));
}

// select, reject, selectattr, rejectattr: keep the items for which a test (or truth) holds, or not.
Result<Value> choose(const FilterCall& call) {
  if (!is_true(call.input)) return sequence_value(SequenceKind::kIterator, {});
  const bool by_attribute = call.name.ends_with("attr");
  const bool keeps = call.name.starts_with("select");
  CallArguments rest = call.arguments;
  const auto take = [&] {
    Value value = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return value;
  };
  std::vector<Value> path;
  if (by_attribute) {
    if (rest.positional.empty())
      return template_error("filter '" + std::string(call.name) + "' needs an attribute");
    ASSIGN_OR_RETURN(path, attribute_path(call, take()));
  }
  std::optional<std::string> test;
  if (!rest.positional.empty()) {
    const Value name = take();
    if (!name.is_text()) return call.wants("the name of a test", name);
    test = name.as<Text>().str();
    for (auto& [symbol, word] : {std::pair{"==", "eq"},
                                 {"!=", "ne"},
                                 {"<", "lt"},
                                 {"<=", "le"},
                                 {">", "gt"},
                                 {">=", "ge"}}) {
      if (*test == symbol) test = word;
    }
  }
  ASSIGN_OR_RETURN(const SequenceRef inputs, iterate(call.input, call.budget));
  RETURN_IF_ERROR(call.budget.charge_items(static_cast<int64_t>(inputs->items.size())));
  std::vector<Value> out;
  for (const Value& item : inputs->items) {
    ASSIGN_OR_RETURN(const Value subject, follow_path(item, path, nullptr));
    bool holds = is_true(subject);
    if (test) {
      ASSIGN_OR_RETURN(holds, call_test(*test, subject, rest, call.budget));
    }
    if (holds == keeps) out.push_back(item);
  }
  return sequence_value(SequenceKind::kIterator, std::move(out));
}

// Sort keys in jinja2 ignore letter case unless asked not to.
Result<Value> sort_key(const FilterCall& call, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_text()) return value;
  return call_filter("lower", value, {}, call.budget);
}

// Stable order of `keys`, which must all be numbers or all strings.
Result<std::vector<size_t>> sorted_order(const FilterCall& call, const std::vector<Value>& keys,
                                         bool reverse) {
  for (const Value& key : keys) {
    if (keys.size() == 1) break;
    if (key.is_undefined()) return undefined_error(key);
    if (!key.is_text() && (!key.is_number() || std::isnan(to_double(key)))) {
      return unsupported(std::string("sorting by keys of type ") + type_name(key) +
                         " is not supported");
    }
    if (key.is_text() != keys[0].is_text()) {
      return call.wants("keys that are all numbers or all strings", key);
    }
    RETURN_IF_ERROR(call.budget.charge_steps(32 * value_weight(key)));
  }
  const auto less = [&](size_t a, size_t b) {
    if (keys[a].is_text()) return keys[a].as<Text>().str() < keys[b].as<Text>().str();
    if (keys[a].is_integer() && keys[b].is_integer())
      return to_integer(keys[a]) < to_integer(keys[b]);
    return to_double(keys[a]) < to_double(keys[b]);
  };
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return reverse ? less(b, a) : less(a, b); });
  return order;
}

struct SortOptions {
  bool reverse = false;
  bool case_sensitive = false;
  std::vector<Value> path;
};

Result<Value> sort_values(const FilterCall& call, const std::vector<Value>& values,
                          const SortOptions& options) {
  std::vector<Value> keys;
  for (const Value& value : values) {
    ASSIGN_OR_RETURN(const Value part, follow_path(value, options.path, nullptr));
    ASSIGN_OR_RETURN(Value key, sort_key(call, part, options.case_sensitive));
    keys.push_back(std::move(key));
  }
  ASSIGN_OR_RETURN(const auto order, sorted_order(call, keys, options.reverse));
  RETURN_IF_ERROR(call.budget.charge_items(2 * static_cast<int64_t>(order.size())));
  std::vector<Value> out;
  for (size_t i : order) out.push_back(values[i]);
  return sequence_value(SequenceKind::kList, std::move(out));
}

Result<Value> sort(const FilterCall& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"reverse", "case_sensitive", "attribute"}));
  SortOptions options;
  options.reverse = bound[0] != nullptr && is_true(*bound[0]);
  options.case_sensitive = bound[1] != nullptr && is_true(*bound[1]);
  if (bound[2] != nullptr && !bound[2]->is<None>()) {
    if (bound[2]->is_text() && bound[2]->as<Text>().str().find(',') != std::string::npos) {
      return unsupported("filter 'sort' by several attributes is not supported");
    }
    ASSIGN_OR_RETURN(options.path, attribute_path(call, *bound[2]));
  }
  ASSIGN_OR_RETURN(const SequenceRef inputs, iterate(call.input, call.budget));
  return sort_values(call, inputs->items, options);
}

// A list of (key, value) tuples in order of key or value.
Result<Value> dictsort(const FilterCall& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"case_sensitive", "by", "reverse"}));
  if (!call.input.is<MapRef>()) return call.wants("a mapping", call.input);
  const std::string by =
      bound[1] != nullptr && bound[1]->is_text() ? bound[1]->as<Text>().str() : "key";
  if (by != "key" && by != "value") {
    return template_error("filter 'dictsort' sorts by key or value, found '" + by + "'");
  }
  SortOptions options;
  options.case_sensitive = bound[0] != nullptr && is_true(*bound[0]);
  options.reverse = bound[2] != nullptr && is_true(*bound[2]);
  options.path = {Value{int64_t{by == "key" ? 0 : 1}}};
  const Method method{std::make_shared<const Value>(call.input), "items"};
  ASSIGN_OR_RETURN(const Value view, call_method(method, {}, call.budget));
  return sort_values(call, view.as<SequenceRef>()->items, options);
}

// min and max; the first of equals wins.
Result<Value> extreme(const FilterCall& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"case_sensitive", "attribute"}));
  SortOptions options;
  options.case_sensitive = bound[0] != nullptr && is_true(*bound[0]);
  options.reverse = call.name == "max";
  if (bound[1] != nullptr && !bound[1]->is<None>()) {
    ASSIGN_OR_RETURN(options.path, attribute_path(call, *bound[1]));
  }
  ASSIGN_OR_RETURN(const SequenceRef inputs, iterate(call.input, call.budget));
  if (inputs->items.empty()) return undefined("the extreme of an empty sequence is used");
  ASSIGN_OR_RETURN(const Value sorted, sort_values(call, inputs->items, options));
  return sorted.as<SequenceRef>()->items.front();
}

Result<Value> sum(const FilterCall& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"attribute", "start"}));
  std::vector<Value> path;
  if (bound[0] != nullptr && !bound[0]->is<None>()) {
    ASSIGN_OR_RETURN(path, attribute_path(call, *bound[0]));
  }
  Value total = bound[1] != nullptr ? *bound[1] : Value{int64_t{0}};
  if (total.is_text()) return call.wants("a start that is not a string", total);
  ASSIGN_OR_RETURN(const SequenceRef inputs, iterate(call.input, call.budget));
  for (const Value& input : inputs->items) {
    RETURN_IF_ERROR(call.budget.charge_steps(1));
    ASSIGN_OR_RETURN(const Value item, follow_path(input, path, nullptr));
    ASSIGN_OR_RETURN(total, arithmetic("+", total, item, call.budget));
  }
  return total;
}

Result<Value> unique(const FilterCall& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"case_sensitive", "attribute"}));
  const bool case_sensitive = bound[0] != nullptr && is_true(*bound[0]);
  std::vector<Value> path;
  if (bound[1] != nullptr && !bound[1]->is<None>()) {
    ASSIGN_OR_RETURN(path, attribute_path(call, *bound[1]));
  }
  ASSIGN_OR_RETURN(const SequenceRef inputs, iterate(call.input, call.budget));
  std::vector<Value> seen, out;
  for (const Value& item : inputs->items) {
    ASSIGN_OR_RETURN(const Value part, follow_path(item, path, nullptr));
    ASSIGN_OR_RETURN(Value key, sort_key(call, part, case_sensitive));
    if (key.is<SequenceRef>() || key.is<MapRef>()) return call.wants("plain values", key);
    RETURN_IF_ERROR(call.budget.charge_items(1));
    RETURN_IF_ERROR(
        call.budget.charge_steps(static_cast<int64_t>(seen.size()) * value_weight(key)));
    const bool is_new = std::none_of(seen.begin(), seen.end(),
                                     [&](const Value& other) { return equals(other, key); });
    if (!is_new) continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return sequence_value(SequenceKind::kIterator, std::move(out));
}

// A filter whose mistakes show when its result is walked; bounds and unknown constructs show at
// once.
template <Result<Value> (*filter)(const FilterCall&)>
Result<Value> lazy(const FilterCall& call) {
  Result<Value> value = filter(call);
  if (value.ok() || value.status().code() != StatusCode::kInvalidArgument) return value;
  return failed_iterator(value.status());
}

constexpr FilterEntry kTable[] = {{"dictsort", dictsort},
                                  {"first", first},
                                  {"items", lazy<items>},
                                  {"join", join},
                                  {"last", last},
                                  {"list", list},
                                  {"map", lazy<map>},
                                  {"max", extreme},
                                  {"min", extreme},
                                  {"reject", lazy<choose>},
                                  {"reverse", reverse},
                                  {"rejectattr", lazy<choose>},
                                  {"select", lazy<choose>},
                                  {"sort", sort},
                                  {"selectattr", lazy<choose>},
                                  {"sum", sum},
                                  {"unique", lazy<unique>}};

}  // namespace

Result<std::vector<Value>> attribute_path(const FilterCall& call, const Value& attribute) {
  if (attribute.is_integer()) return std::vector<Value>{attribute};
  if (!attribute.is_text()) return call.wants("an attribute name", attribute);
  const std::string& dotted = attribute.as<Text>().str();
  ASSIGN_OR_RETURN(const auto parts, split_at(dotted, ".", -1, SplitFrom::kLeft, call.budget));
  std::vector<Value> path;
  for (const ByteSpan& part : parts) {
    const std::string name = dotted.substr(part.begin, part.end - part.begin);
    const bool is_number = !name.empty() && name.size() < 18 &&
                           name.find_first_not_of("0123456789") == std::string::npos;
    path.push_back(is_number ? Value{int64_t{std::stoll(name)}}
                             : text_value(name, Mark::kScaffold));
  }
  return path;
}

Result<Value> follow_path(Value item, const std::vector<Value>& path, const Value* fallback) {
  for (const Value& part : path) {
    ASSIGN_OR_RETURN(item, get_item(item, part));
    if (fallback != nullptr && item.is_undefined()) item = *fallback;
  }
  return item;
}

const FilterEntry* find_list_filter(std::string_view name) {
  const auto found = std::find_if(std::begin(kTable), std::end(kTable),
                                  [&](const FilterEntry& entry) { return entry.name == name; });
  return found != std::end(kTable) ? found : nullptr;
}

}  // namespace moray::jinja
