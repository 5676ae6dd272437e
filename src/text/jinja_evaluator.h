// The evaluator behind jinja_eval.h, shared by its statement and expression files only.
//
// Invariant: scopes live on the stack of the statement that opened them; what can outlive one (a
// namespace, a loop object) is owned by the evaluator or emptied when its scope ends. Errors get
// the line of the innermost construct that failed, once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/text/jinja_ast.h"
#include "src/text/jinja_budget.h"
#include "src/text/jinja_builtins.h"
#include "src/text/jinja_loop.h"
#include "src/text/jinja_value.h"

namespace moray::jinja {

// Variables of one block, found through the blocks around it.
struct Scope {
  Scope* outer = nullptr;
  std::vector<std::pair<std::string, Value>> variables;

  const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer) {
      for (const auto& [key, value] : scope->variables) {
        if (key == name) return &value;
      }
    }
    return nullptr;
  }
  void set(std::string_view name, Value value) {
    for (auto& [key, old] : variables) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  }
};

// What a statement asks of the loop around it.
enum class Flow { kNext, kBreak, kContinue };

class Evaluator {
 public:
  Evaluator(MarkedText& out, int64_t now_unix_s) : out_(&out), now_unix_s_(now_unix_s) {}

  // The scope macros see; it must outlive the evaluator's runs.
  void set_root(Scope& root) { root_ = &root; }
  Result<Flow> run(const Block& block, Scope& scope);

 private:
  struct Nesting {
    explicit Nesting(int& depth) : depth_(depth) { ++depth_; }
    ~Nesting() { --depth_; }
    int& depth_;
  };

  Status located(Status status, int line);
  Status enter();
  Status print(const MarkedText& text);

  Result<Flow> run_one(const Stmt& statement, Scope& scope);
  Result<Flow> run_if(const Stmt& statement, Scope& scope);
  Result<Flow> run_for(const Stmt& statement, Scope& scope);
  Result<Flow> run_iterations(LoopState& loop, const std::shared_ptr<LoopState>& shared,
                              Scope& scope);
  Result<Flow> run_captured(const Stmt& statement, Scope& scope);
  Status assign(const Expr& target, const Value& value, Scope& scope);
  Result<bool> look_ahead(LoopState& loop);
  Result<bool> fetch_item(LoopState& loop);

  Result<Value> evaluate(const Expr& expr, Scope& scope);
  Result<Value> evaluate_one(const Expr& expr, Scope& scope);
  Result<Value> evaluate_operator(const Expr& expr, Scope& scope);
  Result<Value> evaluate_name(const std::string& name, const Scope& scope) const;
  Result<Value> evaluate_items(const Expr& expr, SequenceKind kind, Scope& scope);
  Result<Value> evaluate_map(const Expr& expr, Scope& scope);
  Result<Value> evaluate_slice(const Expr& expr, Scope& scope);
  Result<Value> evaluate_concat(const Expr& expr, Scope& scope);
  Result<Value> evaluate_compare(const Expr& expr, Scope& scope);
  Result<Value> evaluate_call(const Expr& expr, Scope& scope);
  Result<Value> evaluate_filter(const Expr& expr, Scope& scope);
  Result<CallArguments> evaluate_arguments(const Expr& expr, Scope& scope);
  Result<Value> attribute_of(const Value& object, const std::string& name);
  Result<Value> loop_attribute(LoopState& loop, const std::string& name);
  Result<int64_t> loop_length(LoopState& loop);
  Result<Value> call_macro(const Stmt& macro, const CallArguments& arguments);

  MarkedText* out_;
  const int64_t now_unix_s_;
  Scope* root_ = nullptr;
  Budget budget_;
  int depth_ = 0;
  bool error_is_located_ = false;
  const Value* block_input_ = nullptr;  // what a filter chain without input starts from
  std::vector<std::unique_ptr<Namespace>> namespaces_;
};

}  // namespace moray::jinja
