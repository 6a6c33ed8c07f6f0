#include "text/jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <optional>

#include "text/jinja/builtins.h"

namespace levin::text::jinja {
namespace {

template <typename Kind>
ExpressionPtr make(int line, Kind kind) {
  return std::make_unique<Expression>(Expression{line, std::move(kind)});
}

// Names that Jinja or transformers give a meaning and levin does not.
constexpr std::string_view kRefusedNames[] = {
    "caller", "cycler", "joiner", "kwargs", "lipsum", "self", "super", "strftime_now", "varargs"};

}  // namespace

ExpressionPtr ExpressionParser::expression(bool with_conditional) {
  const Nesting nesting(*this);
  return with_conditional ? conditional() : disjunction();
}

ExpressionPtr ExpressionParser::expression_or_tuple(bool with_conditional) {
  const int line = tokens_.line();
  ExpressionPtr first = expression(with_conditional);
  if (!tokens_.is_operator(",")) return first;
  ListExpression tuple{List::Kind::kTuple, {}};
  tuple.items.push_back(std::move(first));
  while (tokens_.skip_operator(",")) {
    const bool ends = tokens_.is(TokenKind::kTagEnd) || tokens_.is(TokenKind::kOutputEnd) ||
                      tokens_.is_operator(")");
    if (ends) break;
    tuple.items.push_back(expression(with_conditional));
  }
  return make(line, std::move(tuple));
}

ExpressionPtr ExpressionParser::conditional() {
  const int line = tokens_.line();
  ExpressionPtr then = disjunction();
  if (!tokens_.skip_name("if")) return then;
  ExpressionPtr test = disjunction();
  ExpressionPtr otherwise = tokens_.skip_name("else") ? expression() : nullptr;
  return make(line, ConditionalExpression{std::move(test), std::move(then), std::move(otherwise)});
}

ExpressionPtr ExpressionParser::disjunction() {
  return logical(false, "or", &ExpressionParser::conjunction);
}

ExpressionPtr ExpressionParser::conjunction() {
  return logical(true, "and", &ExpressionParser::negation);
}

ExpressionPtr ExpressionParser::logical(bool is_and, std::string_view word,
                                        ExpressionPtr (ExpressionParser::*next)()) {
  const int line = tokens_.line();
  ExpressionPtr first = (this->*next)();
  if (!tokens_.is_name(word)) return first;
  LogicalExpression result{is_and, {}};
  result.operands.push_back(std::move(first));
  while (tokens_.skip_name(word)) result.operands.push_back((this->*next)());
  return make(line, std::move(result));
}

ExpressionPtr ExpressionParser::negation() {
  const int line = tokens_.line();
  if (!tokens_.skip_name("not")) return comparison();
  const Nesting nesting(*this);
  return make(line, NotExpression{negation()});
}

std::optional<CompareOp> ExpressionParser::compare_op() {
  constexpr std::pair<std::string_view, CompareOp> kSpellings[] = {
      {"==", CompareOp::kEqual},  {"!=", CompareOp::kNotEqual},
      {"<", CompareOp::kLess},    {"<=", CompareOp::kLessEqual},
      {">", CompareOp::kGreater}, {">=", CompareOp::kGreaterEqual}};
  for (const auto& [text, op] : kSpellings) {
    if (tokens_.skip_operator(text)) return op;
  }
  if (tokens_.skip_name("in")) return CompareOp::kIn;
  if (tokens_.is_name("not") && tokens_.is(TokenKind::kName, "in", 1)) {
    tokens_.take();
    tokens_.take();
    return CompareOp::kNotIn;
  }
  return std::nullopt;
}

ExpressionPtr ExpressionParser::comparison() {
  const int line = tokens_.line();
  CompareExpression result{sum(), {}};
  while (const auto op = compare_op()) result.rest.emplace_back(*op, sum());
  return result.rest.empty() ? std::move(result.first) : make(line, std::move(result));
}

ExpressionPtr ExpressionParser::arithmetic(std::initializer_list<Spelling> spellings,
                                           ExpressionPtr (ExpressionParser::*next)()) {
  const int line = tokens_.line();
  ArithmeticExpression result{(this->*next)(), {}};
  for (bool more = true; more;) {
    more = false;
    for (const Spelling& spelling : spellings) {
      if (!tokens_.skip_operator(spelling.text)) continue;
      result.rest.emplace_back(spelling.op, (this->*next)());
      more = true;
    }
  }
  return result.rest.empty() ? std::move(result.first) : make(line, std::move(result));
}

ExpressionPtr ExpressionParser::sum() {
  return arithmetic({{"+", ArithmeticOp::kAdd}, {"-", ArithmeticOp::kSubtract}},
                    &ExpressionParser::concatenation);
}

ExpressionPtr ExpressionParser::concatenation() {
  const int line = tokens_.line();
  ConcatExpression result;
  result.parts.push_back(product());
  while (tokens_.skip_operator("~")) result.parts.push_back(product());
  return result.parts.size() == 1 ? std::move(result.parts[0]) : make(line, std::move(result));
}

ExpressionPtr ExpressionParser::product() {
  return arithmetic({{"*", ArithmeticOp::kMultiply},
                     {"/", ArithmeticOp::kDivide},
                     {"//", ArithmeticOp::kFloorDivide},
                     {"%", ArithmeticOp::kModulo}},
                    &ExpressionParser::power);
}

// From left to right in Jinja: 2**3**2 is 64.
ExpressionPtr ExpressionParser::power() {
  const int line = tokens_.line();
  ArithmeticExpression result{sign(), {}};
  while (tokens_.skip_operator("**")) result.rest.emplace_back(ArithmeticOp::kPower, sign());
  return result.rest.empty() ? std::move(result.first) : make(line, std::move(result));
}

// A filter behind a sign applies to the signed value: -1|abs is 1.
ExpressionPtr ExpressionParser::sign(bool with_filters) {
  const int line = tokens_.line();
  const bool negative = tokens_.is_operator("-");
  if (!negative && !tokens_.is_operator("+")) return with_steps(primary(), with_filters);
  tokens_.take();
  const Nesting nesting(*this);
  return with_steps(make(line, SignExpression{negative, sign(false)}), with_filters);
}

ExpressionPtr ExpressionParser::primary() {
  const int line = tokens_.line();
  switch (tokens_.peek().kind) {
    case TokenKind::kName:
      return name_or_constant();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return number();
    case TokenKind::kString: {  // "a" "b" is "ab"
      std::string text;
      while (tokens_.is(TokenKind::kString)) text += tokens_.take().text;
      return make(line, Literal{std::move(text)});
    }
    default:
      break;
  }
  if (tokens_.is_operator("[")) return list();
  if (tokens_.is_operator("{")) return dict();
  if (!tokens_.skip_operator("(")) tokens_.fail_expected("an expression");
  if (tokens_.skip_operator(")")) return make(line, ListExpression{List::Kind::kTuple, {}});
  ExpressionPtr inner = expression_or_tuple();
  tokens_.expect_operator(")");
  return inner;
}

ExpressionPtr ExpressionParser::name_or_constant() {
  const Token token = tokens_.take();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return make(token.line, Literal{true});
  if (name == "false" || name == "False") return make(token.line, Literal{false});
  if (name == "none" || name == "None") return make(token.line, Literal{None{}});
  if (std::find(std::begin(kRefusedNames), std::end(kRefusedNames), name) !=
      std::end(kRefusedNames)) {
    throw Failure(fmt::format("'{}' is not implemented", name), token.line);
  }
  return make(token.line, NameExpression{name});
}

ExpressionPtr ExpressionParser::number() {
  const Token token = tokens_.take();
  if (token.kind == TokenKind::kFloat) {
    return make(token.line, Literal{std::strtod(token.text.c_str(), nullptr)});
  }
  std::string_view digits = token.text;
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0') {
    const char marker = static_cast<char>(digits[1] | 0x20);
    base = marker == 'x' ? 16 : marker == 'o' ? 8 : marker == 'b' ? 2 : 10;
    if (base != 10) digits.remove_prefix(2);
  }
  int64_t value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (result.ec != std::errc()) {
    throw Failure(fmt::format("the integer {} does not fit 64 bits", token.text), token.line);
  }
  return make(token.line, Literal{value});
}

ExpressionPtr ExpressionParser::list() {
  const int line = tokens_.line();
  tokens_.expect_operator("[");
  ListExpression result{List::Kind::kList, {}};
  while (!tokens_.is_operator("]")) {
    if (!result.items.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("]")) break;
    result.items.push_back(expression());
  }
  tokens_.expect_operator("]");
  return make(line, std::move(result));
}

ExpressionPtr ExpressionParser::dict() {
  const int line = tokens_.line();
  tokens_.expect_operator("{");
  DictExpression result;
  while (!tokens_.is_operator("}")) {
    if (!result.entries.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("}")) break;
    ExpressionPtr key = expression();
    tokens_.expect_operator(":");
    result.entries.emplace_back(std::move(key), expression());
  }
  tokens_.expect_operator("}");
  return make(line, std::move(result));
}

// --- what follows a value
// -------------------------------------------------------------------------

ExpressionPtr ExpressionParser::with_steps(ExpressionPtr base, bool with_filters) {
  const int line = base->line;
  std::vector<Step> steps;
  while (postfix_step(steps)) {
  }
  while (with_filters) {
    const int step_line = tokens_.line();
    if (tokens_.is_operator("|")) {
      steps.push_back({step_line, filter()});
    } else if (tokens_.is_name("is")) {
      steps.push_back({step_line, test()});
    } else if (tokens_.is_operator("(")) {
      steps.push_back({step_line, CallStep{call_arguments()}});
    } else {
      break;
    }
  }
  if (steps.empty()) return base;
  return make(line, ChainExpression{std::move(base), std::move(steps)});
}

bool ExpressionParser::postfix_step(std::vector<Step>& steps) {
  const int line = tokens_.line();
  if (tokens_.is_operator("[")) {
    steps.push_back(subscript());
    return true;
  }
  if (tokens_.is_operator("(")) {
    steps.push_back({line, CallStep{call_arguments()}});
    return true;
  }
  if (!tokens_.skip_operator(".")) return false;
  if (tokens_.is(TokenKind::kInteger)) {  // items.0 is items[0]
    steps.push_back({line, ItemStep{number()}});
  } else {
    steps.push_back({line, AttributeStep{tokens_.expect(TokenKind::kName, "a name").text}});
  }
  return true;
}

ExpressionPtr ExpressionParser::slice_part() {
  const bool empty = tokens_.is_operator(":") || tokens_.is_operator("]");
  return empty ? nullptr : expression();
}

Step ExpressionParser::subscript() {
  const int line = tokens_.line();
  tokens_.expect_operator("[");
  ExpressionPtr first = tokens_.is_operator(":") ? nullptr : expression();
  if (!tokens_.skip_operator(":")) {
    if (tokens_.is_operator(","))
      throw Failure("a subscript with a comma is not implemented", line);
    tokens_.expect_operator("]");
    return {line, ItemStep{std::move(first)}};
  }
  SliceStep slice{std::move(first), slice_part(), nullptr};
  if (tokens_.skip_operator(":")) slice.step = slice_part();
  tokens_.expect_operator("]");
  return {line, std::move(slice)};
}

std::vector<FilterStep> ExpressionParser::filters() {
  std::vector<FilterStep> result;
  while (tokens_.is_operator("|")) result.push_back(filter());
  return result;
}

// Names of filters and tests may have dots.
std::string ExpressionParser::dotted_name() {
  std::string name = tokens_.expect(TokenKind::kName, "a name").text;
  while (tokens_.skip_operator(".")) {
    name += "." + tokens_.expect(TokenKind::kName, "a name").text;
  }
  return name;
}

FilterStep ExpressionParser::filter() {
  tokens_.expect_operator("|");
  const int line = tokens_.line();
  const std::string name = dotted_name();
  const Builtin* filter = find_filter(name);
  if (filter == nullptr) {
    throw Failure(fmt::format("the filter '{}' is not implemented", name), line);
  }
  FilterStep step{filter, {}};
  if (tokens_.is_operator("(")) step.arguments = call_arguments();
  return step;
}

TestStep ExpressionParser::test() {
  tokens_.expect_name("is");
  const int line = tokens_.line();
  const bool negated = tokens_.skip_name("not");
  const std::string name = dotted_name();
  const Builtin* test = find_test(name);
  if (test == nullptr) throw Failure(fmt::format("the test '{}' is not implemented", name), line);
  TestStep step{test, {}, negated};
  if (tokens_.is_operator("(")) {
    step.arguments = call_arguments();
  } else if (ExpressionPtr operand = test_operand()) {
    step.arguments.positional.push_back(std::move(operand));
  }
  return step;
}

// A test takes one operand without parentheses: "x is divisibleby 3".
ExpressionPtr ExpressionParser::test_operand() {
  const TokenKind kind = tokens_.peek().kind;
  const bool begins_value = kind == TokenKind::kName || kind == TokenKind::kString ||
                            kind == TokenKind::kInteger || kind == TokenKind::kFloat ||
                            tokens_.is_operator("[") || tokens_.is_operator("{");
  if (!begins_value || tokens_.is_name("else") || tokens_.is_name("or") || tokens_.is_name("and")) {
    return nullptr;
  }
  if (tokens_.is_name("is")) {
    throw Failure("You cannot chain multiple tests with is", tokens_.line());
  }
  const Nesting nesting(*this);
  return with_steps(primary(), false);
}

CallArguments ExpressionParser::call_arguments() {
  const int line = tokens_.line();
  tokens_.expect_operator("(");
  CallArguments result;
  bool first = true;
  while (!tokens_.is_operator(")")) {
    if (!first) tokens_.expect_operator(",");
    first = false;
    if (tokens_.is_operator(")")) break;
    if (tokens_.is_operator("*") || tokens_.is_operator("**")) {
      throw Failure(fmt::format("{}arguments are not implemented", tokens_.peek().text), line);
    }
    if (tokens_.is(TokenKind::kName) && tokens_.is(TokenKind::kOperator, "=", 1)) {
      std::string name = tokens_.take().text;
      tokens_.take();
      result.named.emplace_back(std::move(name), expression());
    } else if (result.named.empty()) {
      result.positional.push_back(expression());
    } else {
      throw Failure("a positional argument follows a named one", line);
    }
  }
  tokens_.expect_operator(")");
  return result;
}

}  // namespace levin::text::jinja
