// The syntax tree of a chat template: plain data, made by jinja_parser.h, walked by jinja_eval.h.
//
// Invariant: expression depth and block nesting are bounded by the parser, so recursive walks and
// destruction are safe. Filter and test names were checked by the parser; variable names cannot be.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/text/jinja_value.h"

namespace moray::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind {
  kLiteral,      // literal
  kName,         // name
  kList,         // children
  kTuple,        // children; also an assignment target
  kMap,          // children: key, value, key, value, ...
  kAttribute,    // children[0].name
  kItem,         // children[0][children[1]]
  kSlice,        // children[0][children[1]:children[2]:children[3]]; absent parts are null
  kCall,         // children[0](children[1...]); keywords
  kFilter,       // children[0] | name(children[1...]); keywords. children[0] is null in a block
  kTest,         // children[0] is name(children[1...]); keywords
  kNegate,       // -children[0]
  kPlus,         // +children[0]
  kNot,          // not children[0]
  kAnd,          // children[0] and children[1]
  kOr,           // children[0] or children[1]
  kArithmetic,   // children[0] name children[1]; name: + - * / // % **
  kConcat,       // children joined by ~
  kCompare,      // children[0] op0 children[1] op1 ...; keywords are == != < <= > >= in "not in"
  kConditional,  // children[0] if children[1] else children[2]; the last may be null
  kNamespaceAttribute,  // name.keywords[0], only as an assignment target
};

struct Expr {
  ExprKind kind;
  int line;
  int depth = 1;  // levels of expressions below and including this
  std::string name;
  Value literal;
  std::vector<ExprPtr> children;
  // kCall, kFilter, kTest: names of the last keywords.size() children.
  std::vector<std::string> keywords;
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Block = std::vector<StmtPtr>;

enum class StmtKind {
  kText,         // text
  kPrint,        // value
  kIf,           // branches; otherwise
  kFor,          // for target in value if test: body; otherwise
  kSet,          // target = value
  kSetBlock,     // target = body, piped through value (a kFilter chain) if not null
  kMacro,        // name(parameters, the last defaults.size() with defaults): body
  kFilterBlock,  // body piped through value
  kScope,        // body in a scope of its own (transformers' `generation` block)
  kBreak,
  kContinue,
};

struct Branch {
  ExprPtr test;
  Block body;
};

struct Stmt {
  StmtKind kind;
  int line;
  std::string name;
  Value text;
  ExprPtr target, value, test;
  Block body, otherwise;
  std::vector<Branch> branches;
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;
};

}  // namespace moray::jinja
