// Operators over template values. See jinja_operators.h.
#include "src/text/jinja_operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/text/jinja_builtins.h"
#include "src/text/jinja_print.h"

namespace moray::jinja {
namespace {

Status wrong_types(std::string_view op, const Value& left, const Value& right) {
  return template_error(
      fmt::format("'{}' does not work between {} and {}", op, type_name(left), type_name(right)));
}

Status overflow() {
  return unsupported("an integer beyond 64 bits is not supported");
}

Result<Value> integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return template_error("division by zero");
    return Value{std::pow(static_cast<double>(base), static_cast<double>(exponent))};
  }
  int64_t result = 1;
  // Each pass with |base| > 1 at least doubles the result, so the overflow check ends the loop.
  if (base == 0 || base == 1) return Value{exponent == 0 ? int64_t{1} : base};
  if (base == -1) return Value{exponent % 2 == 0 ? int64_t{1} : int64_t{-1}};
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return overflow();
  }
  return Value{result};
}

// Quotient and remainder round toward minus infinity, as in Python.
Result<Value> integer_division(bool wants_quotient, int64_t left, int64_t right) {
  if (right == 0) return template_error("division by zero");
  if (right == -1) {
    int64_t negated = 0;
    if (!wants_quotient) return Value{int64_t{0}};
    if (__builtin_sub_overflow(int64_t{0}, left, &negated)) return overflow();
    return Value{negated};
  }
  int64_t quotient = left / right;
  int64_t remainder = left % right;
  if (remainder != 0 && (remainder < 0) != (right < 0)) {
    --quotient;
    remainder += right;
  }
  return Value{wants_quotient ? quotient : remainder};
}

Result<Value> integer_arithmetic(std::string_view op, int64_t left, int64_t right) {
  int64_t result = 0;
  if (op == "**") return integer_power(left, right);
  if (op == "//" || op == "%") return integer_division(op == "//", left, right);
  const bool overflows = op == "+"   ? __builtin_add_overflow(left, right, &result)
                         : op == "-" ? __builtin_sub_overflow(left, right, &result)
                                     : __builtin_mul_overflow(left, right, &result);
  if (overflows) return overflow();
  return Value{result};
}

Result<Value> float_arithmetic(std::string_view op, double left, double right) {
  if (op == "+") return Value{left + right};
  if (op == "-") return Value{left - right};
  if (op == "*") return Value{left * right};
  if (op == "**") {
    const double power = std::pow(left, right);
    if (!std::isfinite(power)) return template_error("the result of ** is out of range");
    return Value{power};
  }
  if (right == 0) return template_error("division by zero");
  if (op == "/") return Value{left / right};
  double remainder = std::fmod(left, right);
  double quotient = (left - remainder) / right;
  if (remainder != 0 && (remainder < 0) != (right < 0)) {
    remainder += right;
    quotient -= 1;
  }
  if (remainder == 0) remainder = std::copysign(0.0, right);
  if (op == "%") return Value{remainder};
  // CPython's float floor division: round the quotient, correcting what the division lost.
  double floored = std::floor(quotient);
  if (quotient - floored > 0.5) floored += 1;
  if (quotient == 0) floored = std::copysign(0.0, left / right);
  return Value{floored};
}

// `+` on strings; a safe string escapes what it is joined to, as MarkupSafe does.
Result<Value> join_texts(const Text& left, const Text& right, Budget& budget) {
  RETURN_IF_ERROR(budget.charge_text(*left.marked));
  RETURN_IF_ERROR(budget.charge_text(*right.marked));
  const bool is_safe = left.is_safe || right.is_safe;
  MarkedText out;
  for (const Text* part : {&left, &right}) {
    if (is_safe && !part->is_safe) {
      ASSIGN_OR_RETURN(Value escaped, call_filter("escape", Value{*part}, {}, budget));
      append(out, *escaped.as<Text>().marked);
    } else {
      append(out, *part->marked);
    }
  }
  Value joined = text_value(std::move(out));
  std::get<Text>(joined.data).is_safe = is_safe;
  return joined;
}

Result<Value> repeat(const Value& value, int64_t count, Budget& budget) {
  count = std::max<int64_t>(count, 0);
  if (value.is_text()) {
    const MarkedText& text = *value.as<Text>().marked;
    if (text.text.empty()) count = 0;
    RETURN_IF_ERROR(budget.charge_text(text, count));
    MarkedText out;
    for (int64_t i = 0; i < count; ++i) append(out, text);
    return text_value(std::move(out));
  }
  const Sequence& sequence = *value.as<SequenceRef>();
  int64_t total = 0;
  if (__builtin_mul_overflow(static_cast<int64_t>(sequence.items.size()), count, &total)) {
    total = kMaxSteps + 1;
  }
  RETURN_IF_ERROR(budget.charge_items(total));
  if (total == 0) count = 0;
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(total));
  for (int64_t i = 0; i < count; ++i) {
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return sequence_value(sequence.kind, std::move(items));
}

bool is_list_or_tuple(const Value& value) {
  return value.is<SequenceRef>() && (value.as<SequenceRef>()->kind == SequenceKind::kList ||
                                     value.as<SequenceRef>()->kind == SequenceKind::kTuple);
}

Result<Value> add_sequences(const Sequence& left, const Sequence& right, Budget& budget) {
  RETURN_IF_ERROR(
      budget.charge_items(static_cast<int64_t>(left.items.size() + right.items.size())));
  std::vector<Value> items = left.items;
  items.insert(items.end(), right.items.begin(), right.items.end());
  return sequence_value(left.kind, std::move(items));
}

// -1, 0 or 1; only for two numbers or two strings. NaN compares false every way: nullopt.
Result<std::optional<int>> three_way(std::string_view op, const Value& left, const Value& right) {
  if (left.is_undefined()) return undefined_error(left);
  if (right.is_undefined()) return undefined_error(right);
  if (left.is_integer() && right.is_integer()) {
    const int64_t a = to_integer(left), b = to_integer(right);
    return std::optional<int>(a < b ? -1 : a > b ? 1 : 0);
  }
  if (left.is_number() && right.is_number()) {
    const double a = to_double(left), b = to_double(right);
    if (std::isnan(a) || std::isnan(b)) return std::optional<int>();
    return std::optional<int>(a < b ? -1 : a > b ? 1 : 0);
  }
  if (left.is_text() && right.is_text()) {
    const int order = left.as<Text>().str().compare(right.as<Text>().str());
    return std::optional<int>(order < 0 ? -1 : order > 0 ? 1 : 0);
  }
  if (is_list_or_tuple(left) && is_list_or_tuple(right)) {
    return unsupported("ordering lists with '" + std::string(op) + "' is not supported");
  }
  return wrong_types(op, left, right);
}

Result<bool> contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is_text()) {
    if (!item.is_text()) return wrong_types("in", item, container);
    RETURN_IF_ERROR(budget.charge_steps(value_weight(container)));
    return container.as<Text>().str().find(item.as<Text>().str()) != std::string::npos;
  }
  if (container.is<MapRef>()) {
    RETURN_IF_ERROR(budget.charge_steps(value_weight(item)));
    if (!is_hashable(item)) return template_error(std::string(type_name(item)) + " is no key");
    return item.is_text() && container.as<MapRef>()->find(item.as<Text>().str()) != nullptr;
  }
  ASSIGN_OR_RETURN(const SequenceRef items, iterate(container, budget));
  RETURN_IF_ERROR(budget.charge_steps(items->weight));
  return std::any_of(items->items.begin(), items->items.end(),
                     [&](const Value& candidate) { return equals(candidate, item); });
}

// Python's slice indices: start, step and how many elements.
struct SliceRange {
  int64_t start, step, count;
};

Result<SliceRange> resolve(const SliceBounds& bounds, int64_t size) {
  const int64_t step = bounds.step.value_or(1);
  if (step == 0) return template_error("slice step cannot be zero");
  if (step < -INT64_MAX) return overflow();
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? size : size - 1;
  const auto clamp = [&](std::optional<int64_t> bound, int64_t fallback) {
    if (!bound) return fallback;
    const int64_t from_start = *bound < 0 ? std::max(*bound, -size - 1) + size : *bound;
    return std::clamp(from_start, low, high);
  };
  const int64_t start = clamp(bounds.start, step > 0 ? low : high);
  const int64_t stop = clamp(bounds.stop, step > 0 ? high : low);
  const int64_t distance = step > 0 ? stop - start : start - stop;
  const int64_t stride = step > 0 ? step : -step;
  return SliceRange{start, step, distance <= 0 ? 0 : (distance - 1) / stride + 1};
}

}  // namespace

Status undefined_error(const Value& value) {
  const auto& what = value.as<Undefined>().what;
  return template_error(what ? *what : std::string("an undefined value is used"));
}

Result<Value> arithmetic(std::string_view op, const Value& left, const Value& right,
                         Budget& budget) {
  if (left.is_undefined()) return undefined_error(left);
  if (right.is_undefined()) return undefined_error(right);
  if (left.is_integer() && right.is_integer() && op != "/") {
    return integer_arithmetic(op, to_integer(left), to_integer(right));
  }
  if (left.is_number() && right.is_number()) {
    return float_arithmetic(op, to_double(left), to_double(right));
  }
  if (left.is<BigInteger>() || right.is<BigInteger>()) return overflow();
  if (op == "+" && left.is_text() && right.is_text()) {
    return join_texts(left.as<Text>(), right.as<Text>(), budget);
  }
  if (op == "+" && is_list_or_tuple(left) && is_list_or_tuple(right) &&
      left.as<SequenceRef>()->kind == right.as<SequenceRef>()->kind) {
    return add_sequences(*left.as<SequenceRef>(), *right.as<SequenceRef>(), budget);
  }
  if (op == "*" && right.is_integer() && (left.is_text() || is_list_or_tuple(left))) {
    return repeat(left, to_integer(right), budget);
  }
  if (op == "*" && left.is_integer() && (right.is_text() || is_list_or_tuple(right))) {
    return repeat(right, to_integer(left), budget);
  }
  if (op == "%" && left.is_text()) return unsupported("formatting with % is not supported");
  return wrong_types(op, left, right);
}

Result<bool> compare(std::string_view op, const Value& left, const Value& right, Budget& budget) {
  if (op == "==" || op == "!=") {
    RETURN_IF_ERROR(budget.charge_steps(std::min(value_weight(left), value_weight(right))));
    return equals(left, right) == (op == "==");
  }
  if (op == "in" || op == "not in") {
    ASSIGN_OR_RETURN(const bool is_in, contains(right, left, budget));
    return is_in == (op == "in");
  }
  ASSIGN_OR_RETURN(const std::optional<int> order, three_way(op, left, right));
  if (!order) return false;
  if (op == "<") return *order < 0;
  if (op == "<=") return *order <= 0;
  return op == ">" ? *order > 0 : *order >= 0;
}

Result<Value> negate(const Value& value) {
  if (value.is_undefined()) return undefined_error(value);
  if (value.is<double>()) return Value{-value.as<double>()};
  if (!value.is_integer()) {
    return template_error(std::string("'-' does not work on ") + type_name(value));
  }
  return integer_arithmetic("-", 0, to_integer(value));
}

Result<Value> slice(const Value& object, const SliceBounds& bounds, Budget& budget) {
  if (object.is_text()) {
    const MarkedText& text = *object.as<Text>().marked;
    RETURN_IF_ERROR(budget.charge_steps(value_weight(object)));
    RETURN_IF_ERROR(budget.charge_text(text, 9));  // offsets take 8 bytes a character
    const std::vector<size_t> offsets = code_point_offsets(text.text);
    ASSIGN_OR_RETURN(const SliceRange range,
                     resolve(bounds, static_cast<int64_t>(offsets.size()) - 1));
    MarkedText out;
    const auto offset = [&](int64_t i) { return offsets[static_cast<size_t>(i)]; };
    if (range.step == 1) {
      append(out, text, offset(range.start), offset(range.start + range.count));
    } else {
      RETURN_IF_ERROR(budget.charge_steps(range.count));
      for (int64_t i = 0, at = range.start; i < range.count; ++i, at += range.step) {
        append(out, text, offset(at), offset(at + 1));
      }
    }
    return text_value(std::move(out));
  }
  if (object.is_undefined()) return undefined_error(object);
  const bool is_sliceable =
      is_list_or_tuple(object) ||
      (object.is<SequenceRef>() && object.as<SequenceRef>()->kind == SequenceKind::kRange);
  if (!is_sliceable) return template_error(std::string(type_name(object)) + " cannot be sliced");
  const Sequence& sequence = *object.as<SequenceRef>();
  ASSIGN_OR_RETURN(const SliceRange range,
                   resolve(bounds, static_cast<int64_t>(sequence.items.size())));
  RETURN_IF_ERROR(budget.charge_items(range.count));
  std::vector<Value> items;
  for (int64_t i = 0, at = range.start; i < range.count; ++i, at += range.step) {
    items.push_back(sequence.items[static_cast<size_t>(at)]);
  }
  return sequence_value(sequence.kind, std::move(items));
}

Result<SequenceRef> iterate(const Value& value, Budget& budget) {
  if (value.is<SequenceRef>()) {
    const SequenceRef& sequence = value.as<SequenceRef>();
    if (sequence->kind != SequenceKind::kIterator) return sequence;
    RETURN_IF_ERROR(sequence->error);
    RETURN_IF_ERROR(budget.charge_items(static_cast<int64_t>(sequence->items.size())));
    const auto first = sequence->items.begin() + static_cast<int64_t>(sequence->consumed);
    std::vector<Value> rest(first, sequence->items.end());
    sequence->consumed = sequence->items.size();
    ASSIGN_OR_RETURN(const Value list, sequence_value(SequenceKind::kList, std::move(rest)));
    return list.as<SequenceRef>();
  }
  std::vector<Value> items;
  if (value.is_text()) {
    const MarkedText& text = *value.as<Text>().marked;
    RETURN_IF_ERROR(budget.charge_items(static_cast<int64_t>(text.text.size()) * 3));
    for (size_t i = 0; i < text.text.size(); i += code_point_bytes(text.text, i)) {
      items.push_back(text_value(cut(text, i, i + code_point_bytes(text.text, i))));
    }
  } else if (value.is<MapRef>()) {
    const Map& map = *value.as<MapRef>();
    RETURN_IF_ERROR(budget.charge_items(static_cast<int64_t>(map.entries.size())));
    for (const auto& entry : map.entries) items.push_back(Value{entry.first});
  } else if (!value.is_undefined()) {
    return template_error(std::string(type_name(value)) + " cannot be iterated over");
  }
  ASSIGN_OR_RETURN(const Value list, sequence_value(SequenceKind::kList, std::move(items)));
  return list.as<SequenceRef>();
}

Result<int64_t> length(const Value& value) {
  if (value.is_undefined()) return int64_t{0};
  if (value.is_text()) return static_cast<int64_t>(code_point_count(value.as<Text>().str()));
  if (value.is<MapRef>()) return static_cast<int64_t>(value.as<MapRef>()->entries.size());
  if (value.is<SequenceRef>() && value.as<SequenceRef>()->kind != SequenceKind::kIterator) {
    return static_cast<int64_t>(value.as<SequenceRef>()->items.size());
  }
  return template_error(std::string(type_name(value)) + " has no length");
}

}  // namespace moray::jinja
