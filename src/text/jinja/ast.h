// A template as a tree. Operators that chain (a + b - c, x.y[0]|f) are one node with a list, so
// that the tree is never deeper than the template is nested.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/operators.h"
#include "text/jinja/value.h"

namespace levin::text::jinja {

struct Builtin;
struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Block = std::vector<Statement>;

// --- expressions --------------------------------------------------------------------------------

struct Literal {
  Value value;
};

struct NameExpression {
  std::string name;
};

// [a, b] or (a, b)
struct ListExpression {
  List::Kind kind;
  std::vector<ExpressionPtr> items;
};

struct DictExpression {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};

// -a, +a
struct SignExpression {
  bool negative;
  ExpressionPtr operand;
};

struct NotExpression {
  ExpressionPtr operand;
};

// a and b and c, or with or; gives the operand that decides, as in Python.
struct LogicalExpression {
  bool is_and;
  std::vector<ExpressionPtr> operands;
};

// a + b - c, from left to right
struct ArithmeticExpression {
  ExpressionPtr first;
  std::vector<std::pair<ArithmeticOp, ExpressionPtr>> rest;
};

// a ~ b ~ c
struct ConcatExpression {
  std::vector<ExpressionPtr> parts;
};

// a < b <= c, which is a < b and b <= c
struct CompareExpression {
  ExpressionPtr first;
  std::vector<std::pair<CompareOp, ExpressionPtr>> rest;
};

// a if test else b; without else, an undefined value
struct ConditionalExpression {
  ExpressionPtr test;
  ExpressionPtr then;
  ExpressionPtr otherwise;  // null without else
};

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

// What can follow a value.
struct AttributeStep {  // .name
  std::string name;
};
struct ItemStep {  // [index]
  ExpressionPtr index;
};
struct SliceStep {  // [start:stop:step]; null where left out
  ExpressionPtr start;
  ExpressionPtr stop;
  ExpressionPtr step;
};
struct CallStep {  // (arguments)
  CallArguments arguments;
};
struct FilterStep {  // |filter(arguments)
  const Builtin* filter;
  CallArguments arguments;
};
struct TestStep {  // is test(arguments), is not test(arguments)
  const Builtin* test;
  CallArguments arguments;
  bool negated;
};
struct Step {
  int line;
  std::variant<AttributeStep, ItemStep, SliceStep, CallStep, FilterStep, TestStep> kind;
};

// messages[0].content|trim is "messages" and three steps.
struct ChainExpression {
  ExpressionPtr base;
  std::vector<Step> steps;
};

struct Expression {
  int line;
  std::variant<Literal, NameExpression, ListExpression, DictExpression, SignExpression,
               NotExpression, LogicalExpression, ArithmeticExpression, ConcatExpression,
               CompareExpression, ConditionalExpression, ChainExpression>
      kind;
};

// --- statements
// -----------------------------------------------------------------------------------

// What can be assigned to: name, namespace.attribute, or (a, b).
struct Target {
  std::string name;
  std::string attribute;         // of a namespace; otherwise empty
  std::vector<Target> elements;  // of a tuple; otherwise empty
};

struct TextStatement {
  std::string text;
};

struct OutputStatement {  // {{ value }}
  ExpressionPtr value;
};

struct IfStatement {
  struct Branch {
    ExpressionPtr test;
    Block body;
  };
  std::vector<Branch> branches;  // if, elif, ...
  Block otherwise;
};

struct ForStatement {
  Target target;
  ExpressionPtr iterable;
  ExpressionPtr condition;  // null without
  Block body;
  Block otherwise;  // when there was no item
};

struct SetStatement {  // {% set target = value %}
  Target target;
  ExpressionPtr value;
};

struct SetBlockStatement {  // {% set target|filter %} ... {% endset %}
  Target target;
  std::vector<FilterStep> filters;
  Block body;
};

struct MacroStatement {
  struct Parameter {
    std::string name;
    ExpressionPtr fallback;  // null without
  };
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
};

struct GenerationStatement {  // {% generation %}: marks what an assistant wrote; renders its body
  Block body;
};

struct BreakStatement {};
struct ContinueStatement {};

struct Statement {
  int line;
  std::variant<TextStatement, OutputStatement, IfStatement, ForStatement, SetStatement,
               SetBlockStatement, MacroStatement, GenerationStatement, BreakStatement,
               ContinueStatement>
      kind;
};

}  // namespace levin::text::jinja
