// The expressions inside {{ }} and {% %}, with Jinja's precedence.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/token_stream.h"

namespace levin::text::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  // One expression; without `conditional`, "a if b else c" is left at the "if".
  ExpressionPtr expression(bool conditional = true);
  // The same, or several with commas between them, which make a tuple.
  ExpressionPtr expression_or_tuple(bool conditional = true);
  // |filter|filter(...), of which there may be none.
  std::vector<FilterStep> filters();

  // Counts how deep the parser is inside the template; lives on the stack.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : depth_(parser.depth_) {
      if (depth_ == kMaxDepth) {
        throw Failure("the template is nested too deeply", parser.tokens_.line());
      }
      ++depth_;
    }
    ~Nesting() { --depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    int& depth_;
  };

 private:
  static constexpr int kMaxDepth = 100;

  // From the weakest binding to the strongest.
  ExpressionPtr conditional();
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr sign(bool with_filters = true);
  ExpressionPtr primary();

  ExpressionPtr logical(bool is_and, std::string_view word,
                        ExpressionPtr (ExpressionParser::*next)());
  struct Spelling {
    std::string_view text;
    ArithmeticOp op;
  };
  ExpressionPtr arithmetic(std::initializer_list<Spelling> spellings,
                           ExpressionPtr (ExpressionParser::*next)());
  std::optional<CompareOp> compare_op();

  ExpressionPtr name_or_constant();
  ExpressionPtr number();
  ExpressionPtr list();
  ExpressionPtr dict();

  // .name, [index] and (arguments) behind `base`; then filters and tests.
  ExpressionPtr with_steps(ExpressionPtr base, bool with_filters);
  bool postfix_step(std::vector<Step>& steps);
  Step subscript();
  ExpressionPtr slice_part();
  FilterStep filter();
  TestStep test();
  ExpressionPtr test_operand();
  std::string dotted_name();
  CallArguments call_arguments();

  TokenStream& tokens_;
  int depth_ = 0;
};

}  // namespace levin::text::jinja
