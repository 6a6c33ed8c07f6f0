#include "text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>

#include "text/jinja/expression_parser.h"
#include "text/jinja/token_stream.h"

namespace levin::text::jinja {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)), expressions_(tokens_) {}

  Block run() {
    Block body = block({});
    return body;
  }

 private:
  // Statements up to a tag that begins with one of `ends`, which is left as the current token; with
  // no ends, up to the end of the template.
  Block block(std::initializer_list<std::string_view> ends) {
    const ExpressionParser::Nesting nesting(expressions_);
    Block body;
    for (;;) {
      const int line = tokens_.line();
      if (tokens_.is(TokenKind::kText)) {
        body.push_back({line, TextStatement{tokens_.take().text}});
      } else if (tokens_.is(TokenKind::kOutputBegin)) {
        body.push_back({line, output()});
      } else if (tokens_.is(TokenKind::kTagBegin)) {
        tokens_.take();
        if (is_one_of(ends)) return body;
        body.push_back(statement());
        tokens_.expect(TokenKind::kTagEnd, "'%}'");
      } else if (ends.size() == 0) {
        return body;
      } else {
        tokens_.fail_expected(fmt::format("{{% {} %}}", fmt::join(ends, " %} or {% ")));
      }
    }
  }

  bool is_one_of(std::initializer_list<std::string_view> words) const {
    return std::any_of(words.begin(), words.end(),
                       [&](std::string_view word) { return tokens_.is_name(word); });
  }

  // The rest of a tag that opens a block, and the block.
  Block body(std::initializer_list<std::string_view> ends) {
    tokens_.skip_operator(":");
    tokens_.expect(TokenKind::kTagEnd, "'%}'");
    return block(ends);
  }

  OutputStatement output() {
    tokens_.take();
    OutputStatement result{expressions_.expression_or_tuple()};
    tokens_.expect(TokenKind::kOutputEnd, "'}}'");
    return result;
  }

  Statement statement() {
    const int line = tokens_.line();
    const std::string tag = tokens_.expect(TokenKind::kName, "the name of a tag").text;
    if (tag == "if") return {line, if_statement()};
    if (tag == "for") return {line, for_statement()};
    if (tag == "set") return set_statement(line);
    if (tag == "macro") return {line, macro_statement()};
    if (tag == "generation") return {line, generation_statement()};
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) throw Failure(fmt::format("'{}' outside of a loop", tag), line);
      if (tag == "break") return {line, BreakStatement{}};
      return {line, ContinueStatement{}};
    }
    throw Failure(fmt::format("the tag '{}' is not implemented, or not expected here", tag), line);
  }

  IfStatement if_statement() {
    IfStatement result;
    for (;;) {
      ExpressionPtr test = expressions_.expression_or_tuple(false);
      Block then = body({"elif", "else", "endif"});
      result.branches.push_back({std::move(test), std::move(then)});
      const std::string tag = tokens_.take().text;
      if (tag == "endif") return result;
      if (tag == "else") break;
    }
    result.otherwise = body({"endif"});
    tokens_.take();
    return result;
  }

  ForStatement for_statement() {
    ForStatement result;
    result.target = target(false);
    refuse_loop(result.target, true);
    tokens_.expect_name("in");
    result.iterable = expressions_.expression_or_tuple(false);
    if (tokens_.skip_name("if")) result.condition = expressions_.expression();
    if (tokens_.is_name("recursive")) {
      throw Failure("a recursive loop is not implemented", tokens_.line());
    }
    ++loops_;
    result.body = body({"else", "endfor"});
    --loops_;
    if (tokens_.take().text == "else") {
      result.otherwise = body({"endfor"});
      tokens_.take();
    }
    return result;
  }

  void refuse_loop(const Target& target, bool inside_loop) const {
    if (target.name == "loop" && inside_loop) {
      throw Failure("Can't assign to special loop variable in for-loop target", tokens_.line());
    }
    for (const Target& element : target.elements) refuse_loop(element, inside_loop);
  }

  Statement set_statement(int line) {
    Target assigned = target(true);
    refuse_loop(assigned, loops_ > 0);
    if (tokens_.skip_operator("=")) {
      return {line, SetStatement{std::move(assigned), expressions_.expression_or_tuple()}};
    }
    SetBlockStatement result{std::move(assigned), expressions_.filters(), {}};
    result.body = function_body("endset");
    return {line, std::move(result)};
  }

  GenerationStatement generation_statement() { return {function_body("endgeneration")}; }

  MacroStatement macro_statement() {
    MacroStatement result;
    result.name = tokens_.expect(TokenKind::kName, "the name of the macro").text;
    tokens_.expect_operator("(");
    while (!tokens_.is_operator(")")) {
      if (!result.parameters.empty()) tokens_.expect_operator(",");
      MacroStatement::Parameter parameter;
      parameter.name = tokens_.expect(TokenKind::kName, "a parameter").text;
      if (tokens_.skip_operator("=")) {
        parameter.fallback = expressions_.expression();
      } else if (!result.parameters.empty() && result.parameters.back().fallback) {
        throw Failure("non-default argument follows default argument", tokens_.line());
      }
      result.parameters.push_back(std::move(parameter));
    }
    tokens_.expect_operator(")");
    result.body = function_body("endmacro");
    return result;
  }

  // A body that runs on its own: a loop around it is not its to break.
  Block function_body(std::string_view end) {
    const int outer_loops = std::exchange(loops_, 0);
    Block result = body({end});
    loops_ = outer_loops;
    tokens_.take();
    return result;
  }

  // name, name.attribute (in set), or several of them with commas, in parentheses or not.
  Target target(bool with_attribute) {
    Target first = single_target(with_attribute);
    if (!tokens_.is_operator(",")) return first;
    Target tuple;
    tuple.elements.push_back(std::move(first));
    while (tokens_.skip_operator(",")) {
      const bool ends = tokens_.is_operator("=") || tokens_.is_operator(")") ||
                        tokens_.is_name("in") || tokens_.is(TokenKind::kTagEnd);
      if (ends) break;
      tuple.elements.push_back(single_target(with_attribute));
    }
    return tuple;
  }

  Target single_target(bool with_attribute) {
    const ExpressionParser::Nesting nesting(expressions_);
    if (tokens_.skip_operator("(")) {
      Target inner = target(with_attribute);
      tokens_.expect_operator(")");
      return inner;
    }
    Target result;
    result.name = tokens_.expect(TokenKind::kName, "a name to assign to").text;
    for (const char* constant : {"true", "True", "false", "False", "none", "None"}) {
      if (result.name == constant) {
        throw Failure(fmt::format("can't assign to '{}'", constant), tokens_.line());
      }
    }
    if (with_attribute && tokens_.skip_operator(".")) {
      result.attribute = tokens_.expect(TokenKind::kName, "the name of an attribute").text;
    }
    return result;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;  // around the current statement, inside the same body
};

}  // namespace

Block parse(std::string_view source) {
  return Parser(source).run();
}

}  // namespace levin::text::jinja
