// `value is name(...)`. See jinja_builtins.h.
#include <algorithm>
#include <array>

#include "src/text/jinja_builtins.h"
#include "src/text/jinja_operators.h"
#include "src/text/jinja_print.h"
#include "src/text/python_text.h"

namespace moray::jinja {
namespace {

// Tests of one value.
constexpr std::array kPlainTests = std::to_array<std::string_view>(
    {"boolean", "callable", "defined", "even", "false", "float", "integer", "iterable", "lower",
     "mapping", "none", "number", "odd", "sequence", "string", "true", "undefined", "upper"});

// Tests that compare with an argument, and the operator each stands for.
struct Comparison {
  std::string_view name, op;
};
constexpr std::array kComparisons = std::to_array<Comparison>({{"eq", "=="},
                                                               {"equalto", "=="},
                                                               {"ne", "!="},
                                                               {"lt", "<"},
                                                               {"lessthan", "<"},
                                                               {"le", "<="},
                                                               {"gt", ">"},
                                                               {"greaterthan", ">"},
                                                               {"ge", ">="},
                                                               {"in", "in"}});

const Comparison* find_comparison(std::string_view name) {
  const auto found = std::find_if(kComparisons.begin(), kComparisons.end(),
                                  [&](const Comparison& c) { return c.name == name; });
  return found == kComparisons.end() ? nullptr : &*found;
}

bool is_view(const Value& value) {
  return value.is<SequenceRef>() && value.as<SequenceRef>()->kind > SequenceKind::kRange;
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_text() || value.is<SequenceRef>() || value.is<MapRef>() ||
         value.is<std::shared_ptr<LoopState>>();
}

bool is_callable(const Value& value) {
  return value.is<Method>() || value.is<GlobalFunction>() || value.is<const Stmt*>();
}

Result<bool> is_divisible(const Value& value, const Value& divisor, int64_t remainder,
                          Budget& budget) {
  ASSIGN_OR_RETURN(const Value rest, arithmetic("%", value, divisor, budget));
  return equals(rest, Value{remainder});
}

// str.islower() and str.isupper(): some letter has the case and none has the other.
Result<bool> has_case(const Value& value, bool wants_lower, Budget& budget) {
  ASSIGN_OR_RETURN(const Text text, to_text(value, budget));
  bool has_wanted = false;
  for (size_t i = 0; i < text.str().size(); i += code_point_bytes(text.str(), i)) {
    const char32_t c = code_point_at(text.str(), i);
    if (wants_lower ? is_upper(c) : is_lower(c)) return false;
    has_wanted = has_wanted || (wants_lower ? is_lower(c) : is_upper(c));
  }
  return has_wanted;
}

// `is sameas`: Python's identity, which is only certain for singletons and shared containers.
Result<bool> is_same(const Value& left, const Value& right) {
  if (left.is<None>() || right.is<None>()) return left.is<None>() && right.is<None>();
  if (left.is<bool>() || right.is<bool>()) {
    return left.is<bool>() && right.is<bool>() && left.as<bool>() == right.as<bool>();
  }
  if (left.is<SequenceRef>() && right.is<SequenceRef>()) {
    return left.as<SequenceRef>() == right.as<SequenceRef>();
  }
  if (left.is<MapRef>() && right.is<MapRef>()) return left.as<MapRef>() == right.as<MapRef>();
  if (left.data.index() != right.data.index()) return false;
  return unsupported(std::string("'is sameas' between values of type ") + type_name(left) +
                     " is not supported");
}

Result<bool> plain_test(std::string_view name, const Value& value, Budget& budget) {
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is<None>();
  if (name == "boolean") return value.is<bool>();
  if (name == "true") return value.is<bool>() && value.as<bool>();
  if (name == "false") return value.is<bool>() && !value.as<bool>();
  if (name == "integer") return value.is<int64_t>() || value.is<BigInteger>();
  if (name == "float") return value.is<double>();
  if (name == "number") return value.is_number() || value.is<BigInteger>();
  if (name == "string") return value.is_text();
  if (name == "mapping") return value.is<MapRef>();
  if (name == "iterable") return is_iterable(value);
  if (name == "sequence") {
    return is_iterable(value) && !is_view(value) && !value.is<std::shared_ptr<LoopState>>();
  }
  if (name == "callable") return is_callable(value);
  if (name == "odd") return is_divisible(value, Value{int64_t{2}}, 1, budget);
  if (name == "even") return is_divisible(value, Value{int64_t{2}}, 0, budget);
  return has_case(value, name == "lower", budget);
}

}  // namespace

bool is_known_test(std::string_view name) {
  return std::find(kPlainTests.begin(), kPlainTests.end(), name) != kPlainTests.end() ||
         find_comparison(name) != nullptr || name == "sameas" || name == "divisibleby";
}

Result<bool> call_test(std::string_view name, const Value& input, const CallArguments& arguments,
                       Budget& budget) {
  const std::string callee = "test '" + std::string(name) + "'";
  RETURN_IF_ERROR(budget.charge_steps(1));
  if (std::find(kPlainTests.begin(), kPlainTests.end(), name) != kPlainTests.end()) {
    RETURN_IF_ERROR(bind_arguments(arguments, callee, {}).status());
    return plain_test(name, input, budget);
  }
  if (!is_known_test(name)) return unsupported(callee + " is not supported");
  ASSIGN_OR_RETURN(const auto bound, bind_arguments(arguments, callee, {"other"}, 1));
  if (name == "sameas") return is_same(input, *bound[0]);
  if (name == "divisibleby") return is_divisible(input, *bound[0], 0, budget);
  return compare(find_comparison(name)->op, input, *bound[0], budget);
}

}  // namespace moray::jinja
