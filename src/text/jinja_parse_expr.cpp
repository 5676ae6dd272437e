// Precedence climbing as jinja2 has it, loosest first: if-else, or, and, not, comparisons, + and -,
// ~, * / // %, **, unary signs, then postfix (. [] ()) and filters and tests. See
// jinja_parse_expr.h.
#include "src/text/jinja_parse_expr.h"

#include <utility>

#include "src/text/jinja_builtins.h"
#include "src/text/jinja_parser.h"

namespace moray::jinja {
namespace {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  Result<ExprPtr> conditional();
  Result<ExprPtr> either();
  Result<ExprPtr> primary();
  Result<ExprPtr> tuple(Ternary ternary, bool in_parentheses);
  Result<ExprPtr> filters(ExprPtr input);

 private:
  using Rule = Result<ExprPtr> (ExpressionParser::*)();

  static ExprPtr make(ExprKind kind, int line, std::string name = "") {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line;
    expr->name = std::move(name);
    return expr;
  }
  static void add(Expr& parent, ExprPtr child) {
    if (child) parent.depth = std::max(parent.depth, child->depth + 1);
    parent.children.push_back(std::move(child));
  }
  // The finished node, unless it is deeper than evaluation may recurse.
  Result<ExprPtr> finish(ExprPtr expr) {
    if (expr->depth <= kMaxExpressionDepth) return expr;
    return tokens_.error("an expression nests deeper than " + std::to_string(kMaxExpressionDepth) +
                         " levels");
  }
  Result<ExprPtr> pair(ExprKind kind, int line, std::string name, ExprPtr left, ExprPtr right) {
    ExprPtr expr = make(kind, line, std::move(name));
    add(*expr, std::move(left));
    add(*expr, std::move(right));
    return finish(std::move(expr));
  }

  Result<ExprPtr> both();
  Result<ExprPtr> negation();
  Result<ExprPtr> comparison();
  Result<ExprPtr> sum();
  Result<ExprPtr> concatenation();
  Result<ExprPtr> product();
  Result<ExprPtr> power();
  Result<ExprPtr> unary() { return signed_operand(true); }
  Result<ExprPtr> signed_operand(bool with_filters);
  Result<ExprPtr> postfix(ExprPtr expr);
  Result<ExprPtr> filters_and_tests(ExprPtr expr);
  Result<ExprPtr> subscript(ExprPtr object);
  Result<ExprPtr> slice(ExprPtr object, ExprPtr start, int line);
  Result<ExprPtr> test(ExprPtr input);
  Result<ExprPtr> list();
  Result<ExprPtr> map();
  Result<ExprPtr> literal();
  Status arguments(Expr& call);
  Result<ExprPtr> left_to_right(Rule operand, std::initializer_list<std::string_view> operators);
  bool at_tuple_end() const {
    return tokens_.at(TokenKind::kVariableEnd) || tokens_.at(TokenKind::kBlockEnd) ||
           tokens_.at_operator(")");
  }

  // Counts recursion through brackets, signs and `not`, the only ways to recurse without bound.
  struct Nesting {
    explicit Nesting(int& depth) : depth_(depth) { ++depth_; }
    ~Nesting() { --depth_; }
    int& depth_;
  };
  Status check_nesting() const {
    if (nesting_ <= kMaxExpressionDepth) return Status();
    return tokens_.error("an expression nests deeper than " + std::to_string(kMaxExpressionDepth) +
                         " levels");
  }

  TokenStream& tokens_;
  int nesting_ = 0;
};

Result<ExprPtr> ExpressionParser::conditional() {
  const Nesting nesting(nesting_);
  RETURN_IF_ERROR(check_nesting());
  int line = tokens_.line();
  ASSIGN_OR_RETURN(ExprPtr expr, either());
  while (tokens_.skip_word("if")) {
    ExprPtr choice = make(ExprKind::kConditional, line);
    add(*choice, std::move(expr));
    ASSIGN_OR_RETURN(ExprPtr condition, either());
    add(*choice, std::move(condition));
    ExprPtr otherwise;
    if (tokens_.skip_word("else")) {
      ASSIGN_OR_RETURN(otherwise, conditional());
    }
    add(*choice, std::move(otherwise));
    ASSIGN_OR_RETURN(expr, finish(std::move(choice)));
    line = tokens_.line();
  }
  return expr;
}

Result<ExprPtr> ExpressionParser::either() {
  ASSIGN_OR_RETURN(ExprPtr left, both());
  while (tokens_.at_word("or")) {
    const int line = tokens_.take().line;
    ASSIGN_OR_RETURN(ExprPtr right, both());
    ASSIGN_OR_RETURN(left, pair(ExprKind::kOr, line, "", std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::both() {
  ASSIGN_OR_RETURN(ExprPtr left, negation());
  while (tokens_.at_word("and")) {
    const int line = tokens_.take().line;
    ASSIGN_OR_RETURN(ExprPtr right, negation());
    ASSIGN_OR_RETURN(left, pair(ExprKind::kAnd, line, "", std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::negation() {
  if (!tokens_.at_word("not")) return comparison();
  const Nesting nesting(nesting_);
  RETURN_IF_ERROR(check_nesting());
  ExprPtr expr = make(ExprKind::kNot, tokens_.take().line);
  ASSIGN_OR_RETURN(ExprPtr operand, negation());
  add(*expr, std::move(operand));
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::comparison() {
  ExprPtr expr = make(ExprKind::kCompare, tokens_.line());
  ASSIGN_OR_RETURN(ExprPtr first, sum());
  add(*expr, std::move(first));
  while (true) {
    if (tokens_.at_word("in")) {
      expr->keywords.push_back(tokens_.take().text);
    } else if (tokens_.at_word("not") && tokens_.at_word("in", 1)) {
      tokens_.take();
      tokens_.take();
      expr->keywords.push_back("not in");
    } else if (tokens_.at_operator("==") || tokens_.at_operator("!=") || tokens_.at_operator("<") ||
               tokens_.at_operator("<=") || tokens_.at_operator(">") || tokens_.at_operator(">=")) {
      expr->keywords.push_back(tokens_.take().text);
    } else {
      break;
    }
    ASSIGN_OR_RETURN(ExprPtr next, sum());
    add(*expr, std::move(next));
  }
  if (expr->keywords.empty()) return std::move(expr->children[0]);
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::left_to_right(Rule operand,
                                                std::initializer_list<std::string_view> operators) {
  ASSIGN_OR_RETURN(ExprPtr left, (this->*operand)());
  while (std::any_of(operators.begin(), operators.end(),
                     [&](auto op) { return tokens_.at_operator(op); })) {
    const Token op = tokens_.take();
    ASSIGN_OR_RETURN(ExprPtr right, (this->*operand)());
    ASSIGN_OR_RETURN(
        left, pair(ExprKind::kArithmetic, op.line, op.text, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::sum() {
  return left_to_right(&ExpressionParser::concatenation, {"+", "-"});
}

Result<ExprPtr> ExpressionParser::concatenation() {
  const int line = tokens_.line();
  ASSIGN_OR_RETURN(ExprPtr first, product());
  if (!tokens_.at_operator("~")) return first;
  ExprPtr expr = make(ExprKind::kConcat, line);
  add(*expr, std::move(first));
  while (tokens_.skip_operator("~")) {
    ASSIGN_OR_RETURN(ExprPtr next, product());
    add(*expr, std::move(next));
  }
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::product() {
  return left_to_right(&ExpressionParser::power, {"*", "/", "//", "%"});
}

Result<ExprPtr> ExpressionParser::power() {
  return left_to_right(&ExpressionParser::unary, {"**"});
}

Result<ExprPtr> ExpressionParser::signed_operand(bool with_filters) {
  ExprPtr expr;
  if (tokens_.at_operator("-") || tokens_.at_operator("+")) {
    const Nesting nesting(nesting_);
    RETURN_IF_ERROR(check_nesting());
    const Token sign = tokens_.take();
    expr = make(sign.text == "-" ? ExprKind::kNegate : ExprKind::kPlus, sign.line);
    ASSIGN_OR_RETURN(ExprPtr operand, signed_operand(false));
    add(*expr, std::move(operand));
  } else {
    ASSIGN_OR_RETURN(expr, primary());
  }
  ASSIGN_OR_RETURN(expr, postfix(std::move(expr)));
  if (!with_filters) return finish(std::move(expr));
  return filters_and_tests(std::move(expr));
}

Result<ExprPtr> ExpressionParser::primary() {
  if (tokens_.skip_operator("(")) {
    ASSIGN_OR_RETURN(ExprPtr expr, tuple(Ternary::kAllowed, true));
    RETURN_IF_ERROR(tokens_.expect_operator(")"));
    return expr;
  }
  if (tokens_.at_operator("[")) return list();
  if (tokens_.at_operator("{")) return map();
  return literal();
}

Result<ExprPtr> ExpressionParser::literal() {
  const Token token = tokens_.peek();
  ExprPtr expr = make(ExprKind::kLiteral, token.line);
  if (token.kind == TokenKind::kName) {
    if (token.text == "true" || token.text == "True") {
      expr->literal = {true};
    } else if (token.text == "false" || token.text == "False") {
      expr->literal = {false};
    } else if (token.text == "none" || token.text == "None") {
      expr->literal = {None{}};
    } else {
      for (std::string_view special : {"varargs", "kwargs", "caller", "self", "super"}) {
        if (token.text == special) {
          return Status(StatusCode::kUnsupported,
                        TokenStream::at_line(
                            token.line, "the special name '" + token.text + "' is not supported"));
        }
      }
      expr->kind = ExprKind::kName;
      expr->name = token.text;
    }
  } else if (token.kind == TokenKind::kInteger) {
    expr->literal = {token.integer};
  } else if (token.kind == TokenKind::kFloat) {
    expr->literal = {token.real};
  } else if (token.kind == TokenKind::kString) {
    std::string text = token.text;
    while (tokens_.peek(1).kind == TokenKind::kString) {
      tokens_.take();
      text += tokens_.peek().text;
    }
    expr->literal = text_value(std::move(text), Mark::kScaffold);
  } else {
    return tokens_.unexpected("an expression");
  }
  tokens_.take();
  return expr;
}

Result<ExprPtr> ExpressionParser::tuple(Ternary ternary, bool in_parentheses) {
  const int line = tokens_.line();
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) RETURN_IF_ERROR(tokens_.expect_operator(","));
    if (at_tuple_end()) break;
    ASSIGN_OR_RETURN(ExprPtr item, ternary == Ternary::kAllowed ? conditional() : either());
    items.push_back(std::move(item));
    if (!tokens_.at_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !in_parentheses) return tokens_.unexpected("an expression");
  ExprPtr expr = make(ExprKind::kTuple, line);
  for (ExprPtr& item : items) add(*expr, std::move(item));
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::list() {
  ExprPtr expr = make(ExprKind::kList, tokens_.take().line);
  while (!tokens_.at_operator("]")) {
    if (!expr->children.empty()) RETURN_IF_ERROR(tokens_.expect_operator(","));
    if (tokens_.at_operator("]")) break;
    ASSIGN_OR_RETURN(ExprPtr item, conditional());
    add(*expr, std::move(item));
  }
  RETURN_IF_ERROR(tokens_.expect_operator("]"));
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::map() {
  ExprPtr expr = make(ExprKind::kMap, tokens_.take().line);
  while (!tokens_.at_operator("}")) {
    if (!expr->children.empty()) RETURN_IF_ERROR(tokens_.expect_operator(","));
    if (tokens_.at_operator("}")) break;
    ASSIGN_OR_RETURN(ExprPtr key, conditional());
    RETURN_IF_ERROR(tokens_.expect_operator(":"));
    ASSIGN_OR_RETURN(ExprPtr value, conditional());
    add(*expr, std::move(key));
    add(*expr, std::move(value));
  }
  RETURN_IF_ERROR(tokens_.expect_operator("}"));
  return finish(std::move(expr));
}

Result<ExprPtr> ExpressionParser::postfix(ExprPtr expr) {
  while (true) {
    if (tokens_.at_operator(".") || tokens_.at_operator("[")) {
      ASSIGN_OR_RETURN(expr, subscript(std::move(expr)));
    } else if (tokens_.at_operator("(")) {
      ExprPtr call = make(ExprKind::kCall, tokens_.line());
      add(*call, std::move(expr));
      RETURN_IF_ERROR(arguments(*call));
      ASSIGN_OR_RETURN(expr, finish(std::move(call)));
    } else {
      return expr;
    }
  }
}

Result<ExprPtr> ExpressionParser::filters_and_tests(ExprPtr expr) {
  while (true) {
    if (tokens_.at_operator("|")) {
      ASSIGN_OR_RETURN(expr, filters(std::move(expr)));
    } else if (tokens_.at_word("is")) {
      ASSIGN_OR_RETURN(expr, test(std::move(expr)));
    } else if (tokens_.at_operator("(")) {
      ExprPtr call = make(ExprKind::kCall, tokens_.line());
      add(*call, std::move(expr));
      RETURN_IF_ERROR(arguments(*call));
      ASSIGN_OR_RETURN(expr, finish(std::move(call)));
    } else {
      return expr;
    }
  }
}

Result<ExprPtr> ExpressionParser::subscript(ExprPtr object) {
  const Token opener = tokens_.take();
  if (opener.text == ".") {
    if (tokens_.at(TokenKind::kInteger)) {
      ExprPtr index = make(ExprKind::kLiteral, opener.line);
      index->literal = {tokens_.take().integer};
      return pair(ExprKind::kItem, opener.line, "", std::move(object), std::move(index));
    }
    ASSIGN_OR_RETURN(std::string name, tokens_.expect_name());
    ExprPtr expr = make(ExprKind::kAttribute, opener.line, std::move(name));
    add(*expr, std::move(object));
    return finish(std::move(expr));
  }
  ExprPtr index;
  if (!tokens_.at_operator(":")) {
    ASSIGN_OR_RETURN(index, conditional());
    if (tokens_.at_operator(",")) {
      return Status(
          StatusCode::kUnsupported,
          TokenStream::at_line(tokens_.line(), "an index of several parts is not supported"));
    }
  }
  if (tokens_.at_operator(":")) return slice(std::move(object), std::move(index), opener.line);
  RETURN_IF_ERROR(tokens_.expect_operator("]"));
  return pair(ExprKind::kItem, opener.line, "", std::move(object), std::move(index));
}

Result<ExprPtr> ExpressionParser::slice(ExprPtr object, ExprPtr start, int line) {
  ExprPtr expr = make(ExprKind::kSlice, line);
  add(*expr, std::move(object));
  add(*expr, std::move(start));
  for (int part = 0; part < 2; ++part) {
    ExprPtr bound;
    if (tokens_.skip_operator(":") && !tokens_.at_operator(":") && !tokens_.at_operator("]")) {
      ASSIGN_OR_RETURN(bound, conditional());
    }
    add(*expr, std::move(bound));
  }
  RETURN_IF_ERROR(tokens_.expect_operator("]"));
  return finish(std::move(expr));
}

Status ExpressionParser::arguments(Expr& call) {
  const int line = tokens_.line();
  RETURN_IF_ERROR(tokens_.expect_operator("("));
  bool is_first = true;
  while (!tokens_.at_operator(")")) {
    if (!is_first) RETURN_IF_ERROR(tokens_.expect_operator(","));
    is_first = false;
    if (tokens_.at_operator(")")) break;
    if (tokens_.at_operator("*") || tokens_.at_operator("**")) {
      return Status(StatusCode::kUnsupported,
                    TokenStream::at_line(line, "star arguments in a call are not supported"));
    }
    if (tokens_.at(TokenKind::kName) && tokens_.at_operator("=", 1)) {
      call.keywords.push_back(tokens_.take().text);
      tokens_.take();
    } else if (!call.keywords.empty()) {
      return tokens_.error("a positional argument follows a keyword argument");
    }
    ASSIGN_OR_RETURN(ExprPtr argument, conditional());
    add(call, std::move(argument));
    // Also bounds filters that hand their arguments on to filters: map('map', 'map', ...).
    if (call.children.size() > kMaxArguments + 1) {
      return tokens_.error("a call has more than " + std::to_string(kMaxArguments) + " arguments");
    }
  }
  return tokens_.expect_operator(")");
}

Result<ExprPtr> ExpressionParser::filters(ExprPtr input) {
  bool is_first = input == nullptr && !tokens_.at_operator("|");
  while (is_first || tokens_.at_operator("|")) {
    if (!is_first) tokens_.take();
    is_first = false;
    const int line = tokens_.line();
    ASSIGN_OR_RETURN(std::string name, tokens_.expect_name());
    if (!is_known_filter(name)) {
      return Status(StatusCode::kUnsupported,
                    TokenStream::at_line(line, "filter '" + name + "' is not supported"));
    }
    ExprPtr expr = make(ExprKind::kFilter, line, std::move(name));
    add(*expr, std::move(input));
    if (tokens_.at_operator("(")) RETURN_IF_ERROR(arguments(*expr));
    ASSIGN_OR_RETURN(input, finish(std::move(expr)));
  }
  return input;
}

Result<ExprPtr> ExpressionParser::test(ExprPtr input) {
  const int line = tokens_.take().line;
  const bool is_negated = tokens_.skip_word("not");
  ASSIGN_OR_RETURN(std::string name, tokens_.expect_name());
  if (!is_known_test(name)) {
    return Status(StatusCode::kUnsupported,
                  TokenStream::at_line(line, "test '" + name + "' is not supported"));
  }
  ExprPtr expr = make(ExprKind::kTest, line, std::move(name));
  add(*expr, std::move(input));
  const TokenKind next = tokens_.peek().kind;
  const bool is_word = next == TokenKind::kName && !tokens_.at_any_word({"else", "or", "and"});
  if (tokens_.at_operator("(")) {
    RETURN_IF_ERROR(arguments(*expr));
  } else if (is_word || next == TokenKind::kString || next == TokenKind::kInteger ||
             next == TokenKind::kFloat || tokens_.at_operator("[") || tokens_.at_operator("{")) {
    if (tokens_.at_word("is")) return tokens_.error("tests with 'is' cannot be chained");
    ASSIGN_OR_RETURN(ExprPtr argument, primary());
    ASSIGN_OR_RETURN(argument, postfix(std::move(argument)));
    add(*expr, std::move(argument));
  }
  if (!is_negated) return finish(std::move(expr));
  ExprPtr negated = make(ExprKind::kNot, line);
  add(*negated, std::move(expr));
  return finish(std::move(negated));
}

// A target is a primary expression that can be stored to.
Status check_target(const Expr& target, const TokenStream& tokens, int depth = 0) {
  if (target.kind == ExprKind::kTuple && depth < 8) {
    for (const ExprPtr& part : target.children) {
      RETURN_IF_ERROR(check_target(*part, tokens, depth + 1));
    }
    return Status();
  }
  if (target.kind == ExprKind::kName || target.kind == ExprKind::kNamespaceAttribute) {
    return Status();
  }
  return tokens.error("this cannot be assigned to");
}

}  // namespace

Result<ExprPtr> parse_expression(TokenStream& tokens, Ternary ternary) {
  ExpressionParser parser(tokens);
  return ternary == Ternary::kAllowed ? parser.conditional() : parser.either();
}

Result<ExprPtr> parse_tuple(TokenStream& tokens, Ternary ternary) {
  return ExpressionParser(tokens).tuple(ternary, false);
}

Result<ExprPtr> parse_target(TokenStream& tokens, NamespaceTarget namespace_target) {
  ExpressionParser parser(tokens);
  auto tuple = std::make_unique<Expr>();
  tuple->kind = ExprKind::kTuple;
  tuple->line = tokens.line();
  bool is_tuple = false;
  do {
    ExprPtr part;
    if (namespace_target == NamespaceTarget::kAllowed && tokens.at(TokenKind::kName) &&
        tokens.at_operator(".", 1)) {
      part = std::make_unique<Expr>();
      part->kind = ExprKind::kNamespaceAttribute;
      part->line = tokens.line();
      part->name = tokens.take().text;
      tokens.take();
      ASSIGN_OR_RETURN(std::string attribute, tokens.expect_name());
      part->keywords.push_back(std::move(attribute));
    } else {
      ASSIGN_OR_RETURN(part, parser.primary());
    }
    RETURN_IF_ERROR(check_target(*part, tokens));
    tuple->children.push_back(std::move(part));
    is_tuple = is_tuple || tokens.at_operator(",");
  } while (tokens.skip_operator(",") && !tokens.at(TokenKind::kBlockEnd));
  if (!is_tuple) return std::move(tuple->children[0]);
  return tuple;
}

Result<ExprPtr> parse_filter_chain(TokenStream& tokens) {
  return ExpressionParser(tokens).filters(nullptr);
}

}  // namespace moray::jinja
