// Statements of the template grammar. See jinja_parser.h.
#include "src/text/jinja_parser.h"

#include <initializer_list>
#include <string>
#include <utility>

#include "src/text/jinja_lexer.h"
#include "src/text/jinja_parse_expr.h"
#include "src/text/jinja_token_stream.h"

namespace moray::jinja {
namespace {

using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Block> parse() { return block({}); }

 private:
  static StmtPtr make(StmtKind kind, int line) {
    auto statement = std::make_unique<Stmt>();
    statement->kind = kind;
    statement->line = line;
    return statement;
  }
  Status refuse(int line, const std::string& what) const {
    return Status(StatusCode::kUnsupported, TokenStream::at_line(line, what + " is not supported"));
  }
  Status end_of_tag() {
    if (!tokens_.at(TokenKind::kBlockEnd)) return tokens_.unexpected("'%}'");
    tokens_.take();
    return Status();
  }
  // Body of a tag whose own end comes next, up to one of `ends`, which is consumed with its name
  // but without its closing "%}".
  Result<Block> body(Words ends) {
    RETURN_IF_ERROR(end_of_tag());
    return block(ends);
  }
  Result<Block> last_body(Words ends) {
    ASSIGN_OR_RETURN(Block statements, body(ends));
    tokens_.take();
    return statements;
  }

  Result<Block> block(Words ends);
  Result<StmtPtr> statement();
  Result<StmtPtr> if_statement(int line);
  Result<StmtPtr> for_statement(int line);
  Result<StmtPtr> set_statement(int line);
  Result<StmtPtr> macro_statement(int line);
  Result<StmtPtr> filter_statement(int line);
  Result<StmtPtr> generation_statement(int line);
  Result<StmtPtr> loop_control(StmtKind kind, int line);

  TokenStream tokens_;
  int depth_ = 0;   // blocks open
  int scopes_ = 0;  // of them, those with variables of their own
  int loops_ = 0;   // loops open around the statement at hand
};

// Statements up to a tag that starts with one of `ends`; that tag's "{%" is consumed.
Result<Block> Parser::block(Words ends) {
  if (++depth_ > kMaxBlockDepth) {
    return tokens_.error("blocks nest deeper than " + std::to_string(kMaxBlockDepth) + " levels");
  }
  Block statements;
  while (!tokens_.at(TokenKind::kEnd)) {
    const Token token = tokens_.take();
    StmtPtr next;
    if (token.kind == TokenKind::kData) {
      next = make(StmtKind::kText, token.line);
      next->text = text_value(token.text, Mark::kScaffold);
    } else if (token.kind == TokenKind::kVariableBegin) {
      next = make(StmtKind::kPrint, token.line);
      ASSIGN_OR_RETURN(next->value, parse_tuple(tokens_));
      if (!tokens_.at(TokenKind::kVariableEnd)) return tokens_.unexpected("'}}'");
      tokens_.take();
    } else {
      if (tokens_.at_any_word(ends)) {
        --depth_;
        return statements;
      }
      ASSIGN_OR_RETURN(next, statement());
      RETURN_IF_ERROR(end_of_tag());
    }
    statements.push_back(std::move(next));
  }
  --depth_;
  if (ends.size() > 0) {
    return tokens_.unexpected("'{% " + std::string(*(ends.end() - 1)) + " %}'");
  }
  return statements;
}

// One tag, its name included, up to its last "%}".
Result<StmtPtr> Parser::statement() {
  const int line = tokens_.line();
  ASSIGN_OR_RETURN(const std::string name, tokens_.expect_name());
  if (name == "if") return if_statement(line);
  if (name == "for") return for_statement(line);
  if (name == "set") return set_statement(line);
  if (name == "macro") return macro_statement(line);
  if (name == "filter") return filter_statement(line);
  if (name == "generation") return generation_statement(line);
  if (name == "break") return loop_control(StmtKind::kBreak, line);
  if (name == "continue") return loop_control(StmtKind::kContinue, line);
  if (name == "else" || name == "elif" || name.rfind("end", 0) == 0) {
    return Status(StatusCode::kInvalidFile,
                  TokenStream::at_line(line, "tag '" + name + "' closes nothing that was opened"));
  }
  return refuse(line, "tag '" + name + "'");
}

Result<StmtPtr> Parser::if_statement(int line) {
  StmtPtr choice = make(StmtKind::kIf, line);
  while (true) {
    Branch branch;
    ASSIGN_OR_RETURN(branch.test, parse_tuple(tokens_, Ternary::kNotHere));
    ASSIGN_OR_RETURN(branch.body, body({"elif", "else", "endif"}));
    choice->branches.push_back(std::move(branch));
    if (tokens_.skip_word("elif")) continue;
    const bool has_else = tokens_.at_word("else");
    tokens_.take();
    if (has_else) {
      ASSIGN_OR_RETURN(choice->otherwise, last_body({"endif"}));
    }
    return choice;
  }
}

Result<StmtPtr> Parser::for_statement(int line) {
  StmtPtr loop = make(StmtKind::kFor, line);
  ASSIGN_OR_RETURN(loop->target, parse_target(tokens_, NamespaceTarget::kNotHere));
  RETURN_IF_ERROR(tokens_.expect_word("in"));
  ASSIGN_OR_RETURN(loop->value, parse_tuple(tokens_, Ternary::kNotHere));
  if (tokens_.skip_word("if")) {
    ASSIGN_OR_RETURN(loop->test, parse_expression(tokens_));
  }
  if (tokens_.at_word("recursive")) return refuse(line, "a recursive loop");
  ++scopes_;
  ++loops_;
  ASSIGN_OR_RETURN(loop->body, body({"else", "endfor"}));
  --loops_;
  if (tokens_.take().text == "else") {
    ASSIGN_OR_RETURN(loop->otherwise, last_body({"endfor"}));
  }
  --scopes_;
  return loop;
}

Result<StmtPtr> Parser::set_statement(int line) {
  StmtPtr set = make(StmtKind::kSet, line);
  ASSIGN_OR_RETURN(set->target, parse_target(tokens_, NamespaceTarget::kAllowed));
  if (tokens_.skip_operator("=")) {
    ASSIGN_OR_RETURN(set->value, parse_tuple(tokens_));
    return set;
  }
  set->kind = StmtKind::kSetBlock;
  if (tokens_.at_operator("|")) {
    ASSIGN_OR_RETURN(set->value, parse_filter_chain(tokens_));
  }
  ++scopes_;
  ASSIGN_OR_RETURN(set->body, last_body({"endset"}));
  --scopes_;
  return set;
}

Result<StmtPtr> Parser::macro_statement(int line) {
  // A macro sees the scope it stands in. Only the top one outlives every call.
  if (scopes_ > 0) return refuse(line, "a macro inside a loop, macro or block");
  StmtPtr macro = make(StmtKind::kMacro, line);
  ASSIGN_OR_RETURN(macro->name, tokens_.expect_name());
  RETURN_IF_ERROR(tokens_.expect_operator("("));
  while (!tokens_.at_operator(")")) {
    if (!macro->parameters.empty()) RETURN_IF_ERROR(tokens_.expect_operator(","));
    ASSIGN_OR_RETURN(std::string parameter, tokens_.expect_name());
    if (parameter == "caller") return refuse(line, "a macro parameter named 'caller'");
    macro->parameters.push_back(std::move(parameter));
    if (tokens_.skip_operator("=")) {
      ASSIGN_OR_RETURN(ExprPtr fallback, parse_expression(tokens_));
      macro->defaults.push_back(std::move(fallback));
    } else if (!macro->defaults.empty()) {
      return tokens_.error("a parameter without default follows one with");
    }
  }
  RETURN_IF_ERROR(tokens_.expect_operator(")"));
  ++scopes_;
  const int loops_outside = std::exchange(loops_, 0);
  ASSIGN_OR_RETURN(macro->body, last_body({"endmacro"}));
  loops_ = loops_outside;
  --scopes_;
  return macro;
}

Result<StmtPtr> Parser::filter_statement(int line) {
  StmtPtr filter = make(StmtKind::kFilterBlock, line);
  ASSIGN_OR_RETURN(filter->value, parse_filter_chain(tokens_));
  ++scopes_;
  ASSIGN_OR_RETURN(filter->body, last_body({"endfilter"}));
  --scopes_;
  return filter;
}

Result<StmtPtr> Parser::generation_statement(int line) {
  StmtPtr scope = make(StmtKind::kScope, line);
  ++scopes_;
  const int loops_outside = std::exchange(loops_, 0);
  ASSIGN_OR_RETURN(scope->body, last_body({"endgeneration"}));
  loops_ = loops_outside;
  --scopes_;
  return scope;
}

Result<StmtPtr> Parser::loop_control(StmtKind kind, int line) {
  if (loops_ == 0) {
    return Status(StatusCode::kInvalidFile,
                  TokenStream::at_line(line, "break or continue outside a loop"));
  }
  return make(kind, line);
}

}  // namespace

Result<Block> parse_template(std::string_view source) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize_template(source));
  return Parser(std::move(tokens)).parse();
}

}  // namespace moray::jinja
