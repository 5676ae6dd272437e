// Filters over text and numbers, and the table of all filters. See jinja_builtins.h.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "src/text/jinja_builtins.h"
#include "src/text/jinja_filter_call.h"
#include "src/text/jinja_split.h"
#include "src/text/python_text.h"

namespace moray::jinja {
namespace {

Result<Value> method_filter(const FilterCall& call, std::string name) {
  ASSIGN_OR_RETURN(const Text text, call.text());
  const Method method{std::make_shared<const Value>(Value{Text{text.marked}}), std::move(name)};
  return call_method(method, call.arguments, call.budget);
}

Result<Value> trim(const FilterCall& call) {
  return method_filter(call, "strip");
}
Result<Value> upper(const FilterCall& call) {
  return method_filter(call, "upper");
}
Result<Value> lower(const FilterCall& call) {
  return method_filter(call, "lower");
}
Result<Value> capitalize(const FilterCall& call) {
  return method_filter(call, "capitalize");
}

Result<Value> string(const FilterCall& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  ASSIGN_OR_RETURN(Text text, call.text());
  return Value{std::move(text)};
}

Result<Value> safe(const FilterCall& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  ASSIGN_OR_RETURN(Text text, call.text());
  text.is_safe = true;
  return Value{std::move(text)};
}

// The five HTML characters, as MarkupSafe writes them; a safe string stays as it is.
Result<Value> escape(const FilterCall& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  ASSIGN_OR_RETURN(const Text text, call.text());
  if (text.is_safe) return Value{text};
  RETURN_IF_ERROR(call.budget.charge_text(*text.marked, 6));
  MarkedText out;
  for (size_t i = 0; i < text.str().size(); ++i) {
    const char c = text.str()[i];
    const std::string_view entity = c == '&'    ? "&amp;"
                                    : c == '<'  ? "&lt;"
                                    : c == '>'  ? "&gt;"
                                    : c == '\'' ? "&#39;"
                                    : c == '"'  ? "&#34;"
                                                : "";
    append(out, entity.empty() ? std::string_view(&c, 1) : entity, mark_at(*text.marked, i));
  }
  Value escaped = text_value(std::move(out));
  std::get<Text>(escaped.data).is_safe = true;
  return escaped;
}

// Words start after whitespace, a hyphen or an opening bracket; unlike str.title(), not after
// digits.
Result<Value> title(const FilterCall& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  ASSIGN_OR_RETURN(const Text text, call.text());
  RETURN_IF_ERROR(call.budget.charge_steps(static_cast<int64_t>(text.str().size())));
  RETURN_IF_ERROR(call.budget.charge_text(*text.marked));
  MarkedText out;
  bool starts_word = true;
  for (size_t i = 0; i < text.str().size(); i += code_point_bytes(text.str(), i)) {
    const char32_t c = code_point_at(text.str(), i);
    const MarkedText letter = cut(*text.marked, i, i + code_point_bytes(text.str(), i));
    ASSIGN_OR_RETURN(const MarkedText changed,
                     change_case(letter, starts_word ? Case::kUpper : Case::kLower));
    append(out, changed);
    starts_word = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  }
  return text_value(std::move(out));
}

Result<Value> replace(const FilterCall& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"old", "new", "count"}, 2));
  ASSIGN_OR_RETURN(const Text text, call.text());
  ASSIGN_OR_RETURN(const Text old, to_text(*bound[0], call.budget));
  ASSIGN_OR_RETURN(const Text replacement, to_text(*bound[1], call.budget));
  int64_t count = -1;
  if (bound[2] != nullptr && !bound[2]->is<None>()) {
    if (!bound[2]->is_integer()) return call.wants("an integer count", *bound[2]);
    count = to_integer(*bound[2]);
  }
  ASSIGN_OR_RETURN(MarkedText out,
                   replace_text(*text.marked, old.str(), *replacement.marked, count, call.budget));
  return text_value(std::move(out));
}

// Puts `width` spaces (or the string `width`) before each line but the first and, unless asked,
// empty ones.
Result<Value> indent(const FilterCall& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"width", "first", "blank"}));
  if (!call.input.is_text()) return call.wants("a string", call.input);
  if (call.input.as<Text>().is_safe) {
    return unsupported("filter 'indent' on a safe string is not supported");
  }
  const MarkedText& text = *call.input.as<Text>().marked;
  MarkedText width = marked(std::string(4, ' '), Mark::kScaffold);
  if (bound[0] != nullptr && bound[0]->is_text()) {
    width = *bound[0]->as<Text>().marked;
  } else if (bound[0] != nullptr) {
    if (!bound[0]->is_integer()) return call.wants("an integer width", *bound[0]);
    const int64_t count = std::max<int64_t>(to_integer(*bound[0]), 0);
    RETURN_IF_ERROR(call.budget.charge_bytes(count));
    width = marked(std::string(static_cast<size_t>(count), ' '), Mark::kScaffold);
  }
  const bool first = bound[1] != nullptr && is_true(*bound[1]);
  const bool blank = bound[2] != nullptr && is_true(*bound[2]);
  RETURN_IF_ERROR(call.budget.charge_text(text));
  ASSIGN_OR_RETURN(auto lines, split_lines(text.text + "\n", false, call.budget));
  MarkedText out;
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool is_blank = lines[i].begin == lines[i].end;
    RETURN_IF_ERROR(call.budget.charge_text(width));
    if (i > 0) append(out, "\n", Mark::kScaffold);
    if (i == 0 ? first : blank || !is_blank) append(out, width);
    append(out, text, lines[i].begin, lines[i].end);
  }
  return text_value(std::move(out));
}

Result<Value> tojson(const FilterCall& call) {
  ASSIGN_OR_RETURN(const auto bound,
                   call.bind({"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = bound[0] != nullptr && is_true(*bound[0]);
  style.sort_keys = bound[3] != nullptr && is_true(*bound[3]);
  if (bound[1] != nullptr && bound[1]->is_text()) {
    style.indent = bound[1]->as<Text>().str();
  } else if (bound[1] != nullptr && bound[1]->is_integer()) {
    const int64_t width = std::clamp<int64_t>(to_integer(*bound[1]), 0, 65);
    style.indent = std::string(static_cast<size_t>(width), ' ');
  } else if (bound[1] != nullptr && !bound[1]->is<None>()) {
    return call.wants("an integer or string indent", *bound[1]);
  }
  if (style.indent && style.indent->size() > 64) {
    return unsupported("filter 'tojson' with an indent above 64 is not supported");
  }
  if (style.indent) style.item_separator = ",";
  if (bound[2] != nullptr && !bound[2]->is<None>()) {
    if (!bound[2]->is<SequenceRef>() || bound[2]->as<SequenceRef>()->items.size() != 2 ||
        !bound[2]->as<SequenceRef>()->items[0].is_text() ||
        !bound[2]->as<SequenceRef>()->items[1].is_text()) {
      return call.wants("two strings as separators", *bound[2]);
    }
    style.item_separator = bound[2]->as<SequenceRef>()->items[0].as<Text>().str();
    style.key_separator = bound[2]->as<SequenceRef>()->items[1].as<Text>().str();
  }
  ASSIGN_OR_RETURN(MarkedText json, to_json(call.input, style, call.budget));
  return text_value(std::move(json));
}

Result<Value> default_value(const FilterCall& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"default_value", "boolean"}));
  const bool boolean = bound[1] != nullptr && is_true(*bound[1]);
  if (!call.input.is_undefined() && !(boolean && !is_true(call.input))) return call.input;
  return bound[0] != nullptr ? *bound[0] : text_value("", Mark::kScaffold);
}

Result<Value> length_filter(const FilterCall& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  RETURN_IF_ERROR(call.budget.charge_steps(call.input.is_text() ? value_weight(call.input) : 1));
  ASSIGN_OR_RETURN(const int64_t count, length(call.input));
  return Value{count};
}

// Python's int(text) and float(text): surrounding whitespace, single underscores between digits.
std::optional<std::string> number_text(const Text& text) {
  const std::string_view stripped = strip_left(strip_right(text.str()));
  std::string out;
  for (size_t i = 0; i < stripped.size(); ++i) {
    if (stripped[i] != '_') {
      out += stripped[i];
      continue;
    }
    const auto digit = [&](size_t at) {
      return at < stripped.size() && std::isxdigit(static_cast<uint8_t>(stripped[at]));
    };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
  }
  if (!out.empty() && out[0] == '+') out.erase(0, 1);
  if (out.empty() || out[0] == '+' || (out[0] == '-' && out.size() > 1 && out[1] == '+')) {
    return std::nullopt;
  }
  return out;
}

std::optional<double> parse_float(const Text& text) {
  const auto number = number_text(text);
  double value = 0;
  if (!number || number->find_first_of("xX(") != std::string::npos) return std::nullopt;
  const char* end = number->data() + number->size();
  const auto parsed = std::from_chars(number->data(), end, value);
  if (parsed.ec == std::errc::result_out_of_range) return std::strtod(number->c_str(), nullptr);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return value;
}

Result<Value> truncate_to_integer(double value, const Value& fallback) {
  if (!std::isfinite(value)) return fallback;
  if (value < -0x1p63 || value >= 0x1p63) {
    return unsupported("an integer beyond 64 bits is not supported");
  }
  return Value{static_cast<int64_t>(value)};
}

Result<Value> int_filter(const FilterCall& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"default", "base"}));
  const Value fallback = bound[0] != nullptr ? *bound[0] : Value{int64_t{0}};
  if (call.input.is_undefined()) return undefined_error(call.input);
  if (call.input.is<BigInteger>()) return call.input;
  if (call.input.is_integer()) return Value{to_integer(call.input)};
  if (call.input.is<double>()) return truncate_to_integer(call.input.as<double>(), fallback);
  if (!call.input.is_text()) return fallback;
  const int64_t base = bound[1] == nullptr      ? 10
                       : bound[1]->is_integer() ? to_integer(*bound[1])
                                                : -1;
  if (base < 2 || base > 36) return unsupported("filter 'int' with this base is not supported");
  const auto number = number_text(call.input.as<Text>());
  if (!number) return fallback;
  int64_t value = 0;
  const char* end = number->data() + number->size();
  const auto parsed = std::from_chars(number->data(), end, value, static_cast<int>(base));
  if (parsed.ec == std::errc::result_out_of_range) {
    return unsupported("an integer beyond 64 bits is not supported");
  }
  if (parsed.ec == std::errc() && parsed.ptr == end) return Value{value};
  const std::optional<double> real = parse_float(call.input.as<Text>());
  return real ? truncate_to_integer(*real, fallback) : Result<Value>(fallback);
}

Result<Value> float_filter(const FilterCall& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"default"}));
  if (call.input.is_undefined()) return undefined_error(call.input);
  if (call.input.is_number()) return Value{to_double(call.input)};
  if (call.input.is_text()) {
    const std::optional<double> value = parse_float(call.input.as<Text>());
    if (value) return Value{*value};
  }
  return bound[0] != nullptr ? *bound[0] : Value{0.0};
}

Result<Value> abs_filter(const FilterCall& call) {
  RETURN_IF_ERROR(call.bind({}).status());
  if (!call.input.is_number()) return call.wants("a number", call.input);
  if (call.input.is<double>()) return Value{std::fabs(call.input.as<double>())};
  const int64_t value = to_integer(call.input);
  return value < 0 ? negate(Value{value}) : Result<Value>(Value{value});
}

// Halves go to the even neighbour of the exact binary value, as printf rounds.
Result<Value> round_filter(const FilterCall& call) {
  ASSIGN_OR_RETURN(const auto bound, call.bind({"precision", "method"}));
  if (!call.input.is_number()) return call.wants("a number", call.input);
  const int64_t precision = bound[0] == nullptr      ? 0
                            : bound[0]->is_integer() ? to_integer(*bound[0])
                                                     : -1;
  if (precision < 0 || precision > 15) {
    return unsupported("filter 'round' with a precision outside 0 to 15 is not supported");
  }
  const std::string method = bound[1] != nullptr && bound[1]->is_text() ? bound[1]->as<Text>().str()
                                                                        : std::string("common");
  const double value = to_double(call.input);
  if (method == "common") {
    if (call.input.is_integer()) return Value{to_integer(call.input)};
    char digits[400];
    snprintf(digits, sizeof digits, "%.*f", static_cast<int>(precision), value);
    return Value{std::strtod(digits, nullptr)};
  }
  if (method != "ceil" && method != "floor") {
    return template_error("filter 'round' knows the methods common, ceil and floor, found '" +
                          method + "'");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return Value{(method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale)) / scale};
}

constexpr FilterEntry kTable[] = {{"abs", abs_filter},
                                  {"capitalize", capitalize},
                                  {"count", length_filter},
                                  {"d", default_value},
                                  {"default", default_value},
                                  {"e", escape},
                                  {"escape", escape},
                                  {"float", float_filter},
                                  {"indent", indent},
                                  {"int", int_filter},
                                  {"length", length_filter},
                                  {"lower", lower},
                                  {"replace", replace},
                                  {"round", round_filter},
                                  {"safe", safe},
                                  {"string", string},
                                  {"title", title},
                                  {"tojson", tojson},
                                  {"trim", trim},
                                  {"upper", upper}};

const FilterEntry* find_filter(std::string_view name) {
  const auto found = std::find_if(std::begin(kTable), std::end(kTable),
                                  [&](const FilterEntry& entry) { return entry.name == name; });
  return found != std::end(kTable) ? found : find_list_filter(name);
}

}  // namespace

bool is_known_filter(std::string_view name) {
  return find_filter(name) != nullptr;
}

Result<Value> call_filter(std::string_view name, const Value& input, const CallArguments& arguments,
                          Budget& budget) {
  RETURN_IF_ERROR(budget.charge_steps(1));
  const FilterEntry* entry = find_filter(name);
  if (entry == nullptr) return unsupported("filter '" + std::string(name) + "' is not supported");
  return entry->function({input, entry->name, arguments, budget});
}

}  // namespace moray::jinja
