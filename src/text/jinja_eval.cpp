// Statements, scopes and loops; expressions are in jinja_eval_expr.cpp. See jinja_eval.h.
#include "src/text/jinja_eval.h"

#include <utility>

#include "src/text/jinja_evaluator.h"
#include "src/text/jinja_operators.h"
#include "src/text/jinja_print.h"

namespace moray::jinja {
namespace {

// A message may quote what a request holds: one line, without control characters, not endless.
std::string one_line(std::string message) {
  constexpr size_t kMaxMessageBytes = 400;
  if (message.size() > kMaxMessageBytes) {
    size_t end = kMaxMessageBytes;
    while ((static_cast<uint8_t>(message[end]) & 0xC0) == 0x80) --end;
    message = message.substr(0, end) + "...";
  }
  for (char& c : message) {
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return message;
}

}  // namespace

Status Evaluator::located(Status status, int line) {
  if (status.ok() || error_is_located_) return status;
  error_is_located_ = true;
  return Status(status.code(),
                "chat template line " + std::to_string(line) + ": " + one_line(status.message()));
}

Status Evaluator::enter() {
  RETURN_IF_ERROR(budget_.charge_steps(1));
  if (depth_ < kMaxEvaluationDepth) return Status();
  return Status(StatusCode::kExhausted, "evaluation nests deeper than the limit of " +
                                            std::to_string(kMaxEvaluationDepth) + " levels");
}

Status Evaluator::print(const MarkedText& text) {
  RETURN_IF_ERROR(budget_.charge_text(text));
  append(*out_, text);
  return Status();
}

Result<Flow> Evaluator::run(const Block& block, Scope& scope) {
  for (const StmtPtr& statement : block) {
    Result<Flow> flow = run_one(*statement, scope);
    if (!flow.ok()) return located(flow.status(), statement->line);
    if (*flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<Flow> Evaluator::run_one(const Stmt& statement, Scope& scope) {
  RETURN_IF_ERROR(enter());
  const Nesting nesting(depth_);
  switch (statement.kind) {
    case StmtKind::kText:
      RETURN_IF_ERROR(print(*statement.text.as<Text>().marked));
      return Flow::kNext;
    case StmtKind::kPrint: {
      ASSIGN_OR_RETURN(const Value value, evaluate(*statement.value, scope));
      ASSIGN_OR_RETURN(const Text text, to_text(value, budget_));
      RETURN_IF_ERROR(print(*text.marked));
      return Flow::kNext;
    }
    case StmtKind::kIf:
      return run_if(statement, scope);
    case StmtKind::kFor:
      return run_for(statement, scope);
    case StmtKind::kSet: {
      ASSIGN_OR_RETURN(const Value value, evaluate(*statement.value, scope));
      RETURN_IF_ERROR(assign(*statement.target, value, scope));
      return Flow::kNext;
    }
    case StmtKind::kSetBlock:
    case StmtKind::kFilterBlock:
      return run_captured(statement, scope);
    case StmtKind::kMacro:
      scope.set(statement.name, Value{&statement});
      return Flow::kNext;
    case StmtKind::kScope: {
      Scope inner{&scope, {}};
      return run(statement.body, inner);
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Result<Flow> Evaluator::run_if(const Stmt& statement, Scope& scope) {
  for (const Branch& branch : statement.branches) {
    ASSIGN_OR_RETURN(const Value condition, evaluate(*branch.test, scope));
    if (is_true(condition)) return run(branch.body, scope);
  }
  return run(statement.otherwise, scope);
}

// Runs the body into a text of its own, then assigns or prints that text, filtered.
Result<Flow> Evaluator::run_captured(const Stmt& statement, Scope& scope) {
  MarkedText captured;
  MarkedText* const outside = std::exchange(out_, &captured);
  Scope inner{&scope, {}};
  const Result<Flow> flow = run(statement.body, inner);
  out_ = outside;
  if (!flow.ok() || *flow != Flow::kNext) return flow;
  Value text = text_value(std::move(captured));
  if (statement.value) {
    block_input_ = &text;
    ASSIGN_OR_RETURN(text, evaluate(*statement.value, scope));
  }
  if (statement.kind == StmtKind::kSetBlock) {
    RETURN_IF_ERROR(assign(*statement.target, text, scope));
    return Flow::kNext;
  }
  ASSIGN_OR_RETURN(const Text printed, to_text(text, budget_));
  RETURN_IF_ERROR(print(*printed.marked));
  return Flow::kNext;
}

Status Evaluator::assign(const Expr& target, const Value& value, Scope& scope) {
  if (target.kind == ExprKind::kName) {
    scope.set(target.name, value);
    return Status();
  }
  if (target.kind == ExprKind::kNamespaceAttribute) {
    const Value* holder = scope.find(target.name);
    if (holder == nullptr || !holder->is<Namespace*>()) {
      return template_error("'" + target.name +
                            "' is not a namespace, so its attributes cannot be set");
    }
    RETURN_IF_ERROR(budget_.charge_items(1));
    holder->as<Namespace*>()->attributes.set(
        Text{std::make_shared<const MarkedText>(marked(target.keywords[0], Mark::kScaffold))},
        value);
    return Status();
  }
  ASSIGN_OR_RETURN(const SequenceRef parts, iterate(value, budget_));
  if (value.is_undefined()) return undefined_error(value);
  if (parts->items.size() != target.children.size()) {
    return template_error("expected " + std::to_string(target.children.size()) +
                          " values to unpack, found " + std::to_string(parts->items.size()));
  }
  for (size_t i = 0; i < parts->items.size(); ++i) {
    RETURN_IF_ERROR(assign(*target.children[i], parts->items[i], scope));
  }
  return Status();
}

// Moves the next item that passes the loop's filter into `ahead`; false at the end.
Result<bool> Evaluator::look_ahead(LoopState& loop) {
  if (loop.ahead_begin < loop.ahead.size()) return true;
  loop.ahead.clear();
  loop.ahead_begin = 0;
  return fetch_item(loop);
}

Result<bool> Evaluator::fetch_item(LoopState& loop) {
  if (loop.outer == nullptr) return template_error("'loop' is used after its loop has ended");
  while (loop.unseen < loop.items->items.size()) {
    const Value& item = loop.items->items[loop.unseen++];
    bool passes = true;
    if (loop.statement->test) {
      Scope scope{loop.outer, {}};
      RETURN_IF_ERROR(assign(*loop.statement->target, item, scope));
      ASSIGN_OR_RETURN(const Value condition, evaluate(*loop.statement->test, scope));
      passes = is_true(condition);
    }
    if (!passes) continue;
    loop.ahead.push_back(item);
    return true;
  }
  return false;
}

Result<Flow> Evaluator::run_for(const Stmt& statement, Scope& scope) {
  ASSIGN_OR_RETURN(const Value input, evaluate(*statement.value, scope));
  auto loop = std::make_shared<LoopState>();
  loop->statement = &statement;
  loop->outer = &scope;
  ASSIGN_OR_RETURN(loop->items, iterate(input, budget_));
  const Result<Flow> flow = run_iterations(*loop, loop, scope);
  const bool was_empty = loop->index0 < 0;
  *loop = LoopState();
  if (!flow.ok() || *flow != Flow::kNext || !was_empty) return flow;
  Scope inner{&scope, {}};
  return run(statement.otherwise, inner);
}

Result<Flow> Evaluator::run_iterations(LoopState& loop, const std::shared_ptr<LoopState>& shared,
                                       Scope& scope) {
  Scope inner{&scope, {}};
  while (true) {
    RETURN_IF_ERROR(budget_.charge_steps(1));
    ASSIGN_OR_RETURN(const bool has_item, look_ahead(loop));
    if (!has_item) return Flow::kNext;
    loop.previous = std::move(loop.current);
    loop.current = std::move(loop.ahead[loop.ahead_begin++]);
    ++loop.index0;
    inner.variables.clear();
    inner.set("loop", Value{shared});
    RETURN_IF_ERROR(assign(*loop.statement->target, loop.current, inner));
    ASSIGN_OR_RETURN(const Flow flow, run(loop.statement->body, inner));
    if (flow == Flow::kBreak) return Flow::kNext;
  }
}

Result<MarkedText> render(const Block& program, const Map& variables, int64_t now_unix_s) {
  MarkedText out;
  Evaluator evaluator(out, now_unix_s);
  Scope root;
  for (const auto& [name, value] : variables.entries) root.set(name.str(), value);
  evaluator.set_root(root);
  const Result<Flow> flow = evaluator.run(program, root);
  if (!flow.ok()) return flow.status();
  return out;
}

}  // namespace moray::jinja
