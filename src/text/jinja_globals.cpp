// Global functions of templates. See jinja_globals.h.
#include "src/text/jinja_globals.h"

#include <ctime>

#include "src/text/jinja_operators.h"
#include "src/text/jinja_print.h"
#include "src/text/utf8.h"

namespace moray::jinja {
namespace {

// What jinja2's sandbox allows.
constexpr int64_t kMaxRange = 100'000;

Result<Value> range(const CallArguments& arguments, Budget& budget) {
  if (!arguments.keywords.empty()) return template_error("range() takes no keyword arguments");
  const size_t count = arguments.positional.size();
  if (count < 1 || count > 3) {
    return template_error("range() takes 1 to 3 arguments, found " + std::to_string(count));
  }
  int64_t parts[3] = {0, 0, 1};
  for (size_t i = 0; i < count; ++i) {
    const Value& value = arguments.positional[i];
    if (value.is_undefined()) return undefined_error(value);
    if (!value.is_integer()) {
      return template_error(std::string("range() expects integers, found ") + type_name(value));
    }
    parts[count == 1 ? 1 : i] = to_integer(value);
  }
  const auto [start, stop, step] = parts;
  if (step == 0) return template_error("range() step cannot be zero");
  // 128 bits: start, stop and step may span the whole 64-bit range.
  const __int128 distance = step > 0 ? __int128{stop} - start : __int128{start} - stop;
  const __int128 stride = step > 0 ? __int128{step} : -__int128{step};
  const __int128 size = distance <= 0 ? 0 : (distance - 1) / stride + 1;
  if (size > kMaxRange) {
    return Status(StatusCode::kExhausted,
                  "range() is longer than the limit of " + std::to_string(kMaxRange));
  }
  RETURN_IF_ERROR(budget.charge_items(static_cast<int64_t>(size)));
  std::vector<Value> items;
  for (__int128 i = 0; i < size; ++i) items.push_back({static_cast<int64_t>(start + i * step)});
  return sequence_value(SequenceKind::kRange, std::move(items));
}

// The map both dict() and namespace() start from: an optional mapping, then keywords.
Result<Map> collect(const char* callee, const CallArguments& arguments, Budget& budget) {
  Map map;
  if (arguments.positional.size() > 1) {
    return template_error(std::string(callee) + " takes at most one positional argument");
  }
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (!source.is<MapRef>()) {
      return unsupported(std::string(callee) + " from a " + type_name(source) +
                         " is not supported");
    }
    map = Map();
    RETURN_IF_ERROR(
        budget.charge_items(2 * static_cast<int64_t>(source.as<MapRef>()->entries.size())));
    for (const auto& [key, value] : source.as<MapRef>()->entries) map.set(key, value);
  }
  for (const auto& [name, value] : arguments.keywords) {
    RETURN_IF_ERROR(budget.charge_items(2));
    map.set(Text{std::make_shared<const MarkedText>(marked(name, Mark::kScaffold))}, value);
  }
  return map;
}

Result<Value> strftime_now(const CallArguments& arguments, int64_t now_unix_s, Budget& budget) {
  ASSIGN_OR_RETURN(const auto bound, bind_arguments(arguments, "strftime_now()", {"format"}, 1));
  if (!bound[0]->is_text()) return template_error("strftime_now() expects a format string");
  const std::string& format = bound[0]->as<Text>().str();
  RETURN_IF_ERROR(budget.charge_bytes(1024));
  const auto now = static_cast<time_t>(now_unix_s);
  tm local{};
  localtime_r(&now, &local);
  char buffer[1024];
  // A result of zero bytes is an error only if the format prints something.
  const size_t bytes = strftime(buffer, sizeof buffer, format.c_str(), &local);
  if (bytes == 0 && !format.empty()) {
    return unsupported("strftime_now() with this format is not supported");
  }
  const std::string text(buffer, bytes);
  if (first_invalid_byte(text) != std::string::npos) {
    return unsupported("strftime_now() gave a date that is not UTF-8");
  }
  return text_value(text, Mark::kScaffold);
}

}  // namespace

std::optional<GlobalFunction> find_global(std::string_view name) {
  if (name == "range") return GlobalFunction::kRange;
  if (name == "dict") return GlobalFunction::kDict;
  if (name == "namespace") return GlobalFunction::kNamespace;
  if (name == "raise_exception") return GlobalFunction::kRaiseException;
  if (name == "strftime_now") return GlobalFunction::kStrftimeNow;
  return std::nullopt;
}

Result<Value> call_global(GlobalFunction function, const CallArguments& arguments,
                          int64_t now_unix_s, std::vector<std::unique_ptr<Namespace>>& namespaces,
                          Budget& budget) {
  RETURN_IF_ERROR(budget.charge_steps(1));
  switch (function) {
    case GlobalFunction::kRange:
      return range(arguments, budget);
    case GlobalFunction::kDict: {
      ASSIGN_OR_RETURN(Map map, collect("dict()", arguments, budget));
      return map_value(std::move(map));
    }
    case GlobalFunction::kNamespace: {
      ASSIGN_OR_RETURN(Map map, collect("namespace()", arguments, budget));
      RETURN_IF_ERROR(budget.charge_items(4));
      namespaces.push_back(std::make_unique<Namespace>(Namespace{std::move(map)}));
      return Value{namespaces.back().get()};
    }
    case GlobalFunction::kStrftimeNow:
      return strftime_now(arguments, now_unix_s, budget);
    case GlobalFunction::kRaiseException:
      break;
  }
  ASSIGN_OR_RETURN(const auto bound,
                   bind_arguments(arguments, "raise_exception()", {"message"}, 1));
  ASSIGN_OR_RETURN(const Text text, to_text(*bound[0], budget));
  return template_error("the template refuses this conversation: " + text.str());
}

}  // namespace moray::jinja
