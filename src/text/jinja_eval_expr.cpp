// Expressions, calls, macros and the `loop` object. See jinja_eval.h.
#include <algorithm>
#include <utility>

#include "src/text/jinja_evaluator.h"
#include "src/text/jinja_globals.h"
#include "src/text/jinja_operators.h"
#include "src/text/jinja_print.h"

namespace moray::jinja {

Result<Value> Evaluator::evaluate(const Expr& expr, Scope& scope) {
  Status entered = enter();
  if (!entered.ok()) return located(std::move(entered), expr.line);
  const Nesting nesting(depth_);
  Result<Value> value = evaluate_one(expr, scope);
  if (!value.ok()) return located(value.status(), expr.line);
  return value;
}

Result<Value> Evaluator::evaluate_one(const Expr& expr, Scope& scope) {
  switch (expr.kind) {
    case ExprKind::kLiteral:
      return expr.literal;
    case ExprKind::kName:
      return evaluate_name(expr.name, scope);
    case ExprKind::kList:
      return evaluate_items(expr, SequenceKind::kList, scope);
    case ExprKind::kTuple:
      return evaluate_items(expr, SequenceKind::kTuple, scope);
    case ExprKind::kMap:
      return evaluate_map(expr, scope);
    case ExprKind::kAttribute: {
      ASSIGN_OR_RETURN(const Value object, evaluate(*expr.children[0], scope));
      return attribute_of(object, expr.name);
    }
    case ExprKind::kItem: {
      ASSIGN_OR_RETURN(const Value object, evaluate(*expr.children[0], scope));
      ASSIGN_OR_RETURN(const Value key, evaluate(*expr.children[1], scope));
      if (object.is<std::shared_ptr<LoopState>>() && key.is_text()) {
        return attribute_of(object, key.as<Text>().str());
      }
      if (object.is_text()) RETURN_IF_ERROR(budget_.charge_text(*object.as<Text>().marked, 8));
      return get_item(object, key);
    }
    case ExprKind::kSlice:
      return evaluate_slice(expr, scope);
    case ExprKind::kCall:
      return evaluate_call(expr, scope);
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return evaluate_filter(expr, scope);
    default:
      return evaluate_operator(expr, scope);
  }
}

Result<Value> Evaluator::evaluate_operator(const Expr& expr, Scope& scope) {
  if (expr.kind == ExprKind::kConcat) return evaluate_concat(expr, scope);
  if (expr.kind == ExprKind::kCompare) return evaluate_compare(expr, scope);
  if (expr.kind == ExprKind::kConditional) {
    ASSIGN_OR_RETURN(const Value condition, evaluate(*expr.children[1], scope));
    if (is_true(condition)) return evaluate(*expr.children[0], scope);
    if (expr.children[2]) return evaluate(*expr.children[2], scope);
    return undefined("the value of an inline if without else is used, but its condition is false");
  }
  ASSIGN_OR_RETURN(const Value first, evaluate(*expr.children[0], scope));
  switch (expr.kind) {
    case ExprKind::kNot:
      return Value{!is_true(first)};
    case ExprKind::kAnd:
      return is_true(first) ? evaluate(*expr.children[1], scope) : Result<Value>(first);
    case ExprKind::kOr:
      return is_true(first) ? Result<Value>(first) : evaluate(*expr.children[1], scope);
    case ExprKind::kNegate:
      return negate(first);
    case ExprKind::kPlus:
      if (!first.is_number()) {
        return first.is_undefined()
                   ? undefined_error(first)
                   : template_error(std::string("'+' does not work on ") + type_name(first));
      }
      return first.is<bool>() ? Value{to_integer(first)} : first;
    default:
      break;
  }
  CHECK(expr.kind == ExprKind::kArithmetic, static_cast<int>(expr.kind));
  ASSIGN_OR_RETURN(const Value second, evaluate(*expr.children[1], scope));
  return arithmetic(expr.name, first, second, budget_);
}

Result<Value> Evaluator::evaluate_name(const std::string& name, const Scope& scope) const {
  if (const Value* value = scope.find(name)) return *value;
  if (const auto function = find_global(name)) return Value{*function};
  // Names of jinja2's own that we lack must not silently be undefined.
  for (std::string_view lacking : {"lipsum", "cycler", "joiner"}) {
    if (name == lacking) return unsupported("function '" + name + "' is not supported");
  }
  return undefined("'" + name + "' is undefined");
}

Result<Value> Evaluator::evaluate_items(const Expr& expr, SequenceKind kind, Scope& scope) {
  RETURN_IF_ERROR(budget_.charge_items(static_cast<int64_t>(expr.children.size())));
  std::vector<Value> items;
  for (const ExprPtr& child : expr.children) {
    ASSIGN_OR_RETURN(Value item, evaluate(*child, scope));
    items.push_back(std::move(item));
  }
  return sequence_value(kind, std::move(items));
}

Result<Value> Evaluator::evaluate_map(const Expr& expr, Scope& scope) {
  RETURN_IF_ERROR(budget_.charge_items(static_cast<int64_t>(expr.children.size())));
  Map map;
  for (size_t i = 0; i < expr.children.size(); i += 2) {
    ASSIGN_OR_RETURN(const Value key, evaluate(*expr.children[i], scope));
    ASSIGN_OR_RETURN(Value value, evaluate(*expr.children[i + 1], scope));
    if (!key.is_text()) {
      return unsupported(std::string("a map key of type ") + type_name(key) + " is not supported");
    }
    map.set(key.as<Text>(), std::move(value));
  }
  return map_value(std::move(map));
}

Result<Value> Evaluator::evaluate_slice(const Expr& expr, Scope& scope) {
  ASSIGN_OR_RETURN(const Value object, evaluate(*expr.children[0], scope));
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (!expr.children[i + 1]) continue;
    ASSIGN_OR_RETURN(const Value bound, evaluate(*expr.children[i + 1], scope));
    if (bound.is<None>()) continue;
    if (bound.is_undefined()) return undefined_error(bound);
    if (!bound.is_integer()) {
      return template_error(std::string("slice bounds must be integers, found ") +
                            type_name(bound));
    }
    bounds[i] = to_integer(bound);
  }
  return slice(object, {bounds[0], bounds[1], bounds[2]}, budget_);
}

Result<Value> Evaluator::evaluate_concat(const Expr& expr, Scope& scope) {
  MarkedText out;
  for (const ExprPtr& child : expr.children) {
    ASSIGN_OR_RETURN(const Value value, evaluate(*child, scope));
    ASSIGN_OR_RETURN(const Text text, to_text(value, budget_));
    RETURN_IF_ERROR(budget_.charge_text(*text.marked));
    append(out, *text.marked);
  }
  return text_value(std::move(out));
}

Result<Value> Evaluator::evaluate_compare(const Expr& expr, Scope& scope) {
  ASSIGN_OR_RETURN(Value left, evaluate(*expr.children[0], scope));
  for (size_t i = 0; i < expr.keywords.size(); ++i) {
    ASSIGN_OR_RETURN(Value right, evaluate(*expr.children[i + 1], scope));
    ASSIGN_OR_RETURN(const bool holds, compare(expr.keywords[i], left, right, budget_));
    if (!holds) return Value{false};
    left = std::move(right);
  }
  return Value{true};
}

// The arguments after children[0]; the last ones go by keyword.
Result<CallArguments> Evaluator::evaluate_arguments(const Expr& expr, Scope& scope) {
  CallArguments arguments;
  const size_t positional = expr.children.size() - expr.keywords.size();
  for (size_t i = 1; i < expr.children.size(); ++i) {
    ASSIGN_OR_RETURN(Value value, evaluate(*expr.children[i], scope));
    if (i < positional) {
      arguments.positional.push_back(std::move(value));
    } else {
      arguments.keywords.emplace_back(expr.keywords[i - positional], std::move(value));
    }
  }
  return arguments;
}

Result<Value> Evaluator::evaluate_filter(const Expr& expr, Scope& scope) {
  Value input;
  if (expr.children[0]) {
    ASSIGN_OR_RETURN(input, evaluate(*expr.children[0], scope));
  } else {
    input = *block_input_;
  }
  ASSIGN_OR_RETURN(const CallArguments arguments, evaluate_arguments(expr, scope));
  if (expr.kind == ExprKind::kFilter) return call_filter(expr.name, input, arguments, budget_);
  ASSIGN_OR_RETURN(const bool holds, call_test(expr.name, input, arguments, budget_));
  return Value{holds};
}

Result<Value> Evaluator::evaluate_call(const Expr& expr, Scope& scope) {
  ASSIGN_OR_RETURN(const Value callee, evaluate(*expr.children[0], scope));
  ASSIGN_OR_RETURN(const CallArguments arguments, evaluate_arguments(expr, scope));
  if (callee.is<const Stmt*>()) return call_macro(*callee.as<const Stmt*>(), arguments);
  if (callee.is<GlobalFunction>()) {
    return call_global(callee.as<GlobalFunction>(), arguments, now_unix_s_, namespaces_, budget_);
  }
  if (callee.is_undefined()) return undefined_error(callee);
  if (!callee.is<Method>()) {
    return template_error(std::string("a value of type ") + type_name(callee) +
                          " cannot be called");
  }
  const Method& method = callee.as<Method>();
  if (!method.receiver->is<std::shared_ptr<LoopState>>()) {
    return call_method(method, arguments, budget_);
  }
  // loop.cycle(a, b, ...)
  const auto& choices = arguments.positional;
  if (choices.empty()) return template_error("loop.cycle() needs at least one argument");
  const LoopState& loop = *method.receiver->as<std::shared_ptr<LoopState>>();
  if (loop.index0 < 0) return template_error("'loop' is used after its loop has ended");
  return choices[static_cast<size_t>(loop.index0) % choices.size()];
}

// A macro sees its parameters and the top-level variables, not those of its caller.
Result<Value> Evaluator::call_macro(const Stmt& macro, const CallArguments& arguments) {
  const size_t count = macro.parameters.size();
  if (arguments.positional.size() > count) {
    return template_error("macro '" + macro.name + "' takes at most " + std::to_string(count) +
                          " arguments, found " + std::to_string(arguments.positional.size()));
  }
  Scope scope{root_, {}};
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.parameters[i];
    if (i < arguments.positional.size()) scope.set(name, arguments.positional[i]);
  }
  for (const auto& [name, value] : arguments.keywords) {
    const auto known = std::find(macro.parameters.begin(), macro.parameters.end(), name);
    if (known == macro.parameters.end()) {
      return template_error("macro '" + macro.name + "' has no parameter '" + name + "'");
    }
    if (static_cast<size_t>(known - macro.parameters.begin()) < arguments.positional.size()) {
      return template_error("macro '" + macro.name + "' got its parameter '" + name + "' twice");
    }
    scope.set(name, value);
  }
  const size_t first_default = count - macro.defaults.size();
  for (size_t i = arguments.positional.size(); i < count; ++i) {
    const std::string& name = macro.parameters[i];
    const bool is_given = std::any_of(scope.variables.begin(), scope.variables.end(),
                                      [&](const auto& entry) { return entry.first == name; });
    if (is_given) continue;
    Value value = undefined("parameter '" + name + "' was not provided");
    if (i >= first_default) {
      ASSIGN_OR_RETURN(value, evaluate(*macro.defaults[i - first_default], scope));
    }
    scope.set(name, std::move(value));
  }
  MarkedText printed;
  MarkedText* const outside = std::exchange(out_, &printed);
  const Result<Flow> flow = run(macro.body, scope);
  out_ = outside;
  if (!flow.ok()) return flow.status();
  return text_value(std::move(printed));
}

Result<Value> Evaluator::attribute_of(const Value& object, const std::string& name) {
  if (!object.is<std::shared_ptr<LoopState>>()) return get_attribute(object, name);
  if (name == "cycle") return Value{Method{std::make_shared<const Value>(object), name}};
  if (name == "changed") return unsupported("loop.changed() is not supported");
  return loop_attribute(*object.as<std::shared_ptr<LoopState>>(), name);
}

Result<int64_t> Evaluator::loop_length(LoopState& loop) {
  if (!loop.statement->test) return static_cast<int64_t>(loop.items->items.size());
  while (true) {
    ASSIGN_OR_RETURN(const bool fetched, fetch_item(loop));
    if (!fetched) break;
  }
  return loop.index0 + 1 + static_cast<int64_t>(loop.ahead.size() - loop.ahead_begin);
}

Result<Value> Evaluator::loop_attribute(LoopState& loop, const std::string& name) {
  if (loop.outer == nullptr) return template_error("'loop' is used after its loop has ended");
  if (name == "index0") return Value{loop.index0};
  if (name == "index") return Value{loop.index0 + 1};
  if (name == "first") return Value{loop.index0 == 0};
  if (name == "depth") return Value{int64_t{1}};
  if (name == "depth0") return Value{int64_t{0}};
  if (name == "length" || name == "revindex" || name == "revindex0") {
    ASSIGN_OR_RETURN(const int64_t length, loop_length(loop));
    if (name == "length") return Value{length};
    return Value{length - loop.index0 - (name == "revindex0" ? 1 : 0)};
  }
  if (name == "previtem") {
    if (loop.index0 <= 0) return undefined("there is no previous item");
    return loop.previous;
  }
  if (name == "last" || name == "nextitem") {
    ASSIGN_OR_RETURN(const bool has_next, look_ahead(loop));
    if (name == "last") return Value{!has_next};
    if (!has_next) return undefined("there is no next item");
    return loop.ahead[loop.ahead_begin];
  }
  return undefined("a loop has no attribute '" + name + "'");
}

}  // namespace moray::jinja
