#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"
#include "text/jinja/overloaded.h"

namespace levin::text::jinja {

// Names of one body, and the scope around it. Loops, macros, block assignments and generation tags
// have one of their own; branches of an `if` do not. Scopes live on the interpreter's stack:
// nothing that refers to one can leave it (value.h keeps macros and loops out of containers).
struct Scope {
  explicit Scope(Scope* around) : parent(around) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
      for (const auto& [key, value] : scope->names) {
        if (key == name) return &value;
      }
    }
    return nullptr;
  }

  bool has_own(std::string_view name) const {
    return std::any_of(names.begin(), names.end(),
                       [&](const auto& entry) { return entry.first == name; });
  }

  void set(std::string_view name, Value value) {
    for (auto& [key, old] : names) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    names.emplace_back(name, std::move(value));
  }

  Scope* parent;
  std::vector<std::pair<std::string_view, Value>> names;  // views into the tree
};

namespace {

// How a block ended: at its end, or with a break or continue on its way to the loop.
enum class Flow { kNext, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(const Dict& variables, Budget& budget) : variables_(variables), budget_(budget) {}

  std::string run(const Block& body) {
    try {
      Scope scope(nullptr);
      (void)run_block(body, scope);
      return std::move(out_);
    } catch (const Failure& failure) {
      throw Failure(failure.what(), failure.line() > 0 ? failure.line() : line_);
    }
  }

 private:
  // --- statements -------------------------------------------------------------------------------

  Flow run_block(const Block& block, Scope& scope) {
    const Budget::Nesting nesting(budget_);
    for (const Statement& statement : block) {
      budget_.step();
      line_ = statement.line;
      const Flow flow =
          std::visit([&](const auto& kind) { return run(kind, scope); }, statement.kind);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  void print(std::string_view text) {
    budget_.produce(text.size());
    out_ += text;
  }

  // What a block prints, as text of its own.
  std::string capture(const Block& block, Scope& scope) {
    std::string outer = std::exchange(out_, {});
    (void)run_block(block, scope);
    return std::exchange(out_, std::move(outer));
  }

  Flow run(const TextStatement& statement, Scope&) {
    print(statement.text);
    return Flow::kNext;
  }

  Flow run(const OutputStatement& statement, Scope& scope) {
    const Value value = evaluate(*statement.value, scope);
    print(value.text() != nullptr ? *value.text() : to_text(value, budget_));
    return Flow::kNext;
  }

  Flow run(const IfStatement& statement, Scope& scope) {
    for (const auto& branch : statement.branches) {
      if (truthy(evaluate(*branch.test, scope))) return run_block(branch.body, scope);
    }
    return run_block(statement.otherwise, scope);
  }

  Flow run(const ForStatement& statement, Scope& scope) {
    const Value iterable = evaluate(*statement.iterable, scope);
    const auto* iterator = iterable.get_if<IteratorPtr>();
    const auto items = iterator != nullptr
                           ? *iterator
                           : std::make_shared<Iterator>(Iterator{elements(iterable, budget_), 0});
    Loop::Condition condition;
    if (statement.condition != nullptr) {
      condition = [&](const Value& item) {
        Scope test_scope(&scope);
        assign(statement.target, item, test_scope);
        return truthy(evaluate(*statement.condition, test_scope));
      };
    }
    const auto loop = std::make_shared<Loop>(items, std::move(condition));
    bool finished_one = false;  // Jinja runs `else` unless one pass came to the end of the body
    while (loop->advance()) {
      Scope body_scope(&scope);
      body_scope.set("loop", loop);
      assign(statement.target, loop->current(), body_scope);
      const Flow flow = run_block(statement.body, body_scope);
      finished_one |= flow == Flow::kNext;
      if (flow == Flow::kBreak) break;
    }
    if (finished_one) return Flow::kNext;
    Scope otherwise_scope(&scope);
    return run_block(statement.otherwise, otherwise_scope);
  }

  Flow run(const SetStatement& statement, Scope& scope) {
    assign(statement.target, evaluate(*statement.value, scope), scope);
    return Flow::kNext;
  }

  Flow run(const SetBlockStatement& statement, Scope& scope) {
    Scope body_scope(&scope);
    Value value = capture(statement.body, body_scope);
    for (const FilterStep& filter : statement.filters) {
      value = call(*filter.filter, value, arguments(filter.arguments, body_scope), budget_);
    }
    assign(statement.target, std::move(value), scope);
    return Flow::kNext;
  }

  Flow run(const MacroStatement& statement, Scope& scope) {
    scope.set(statement.name, MacroValue{&statement, &scope});
    return Flow::kNext;
  }

  Flow run(const GenerationStatement& statement, Scope& scope) {
    Scope body_scope(&scope);
    return run_block(statement.body, body_scope);
  }

  Flow run(const BreakStatement&, Scope&) { return Flow::kBreak; }
  Flow run(const ContinueStatement&, Scope&) { return Flow::kContinue; }

  void assign(const Target& target, Value value, Scope& scope) {
    if (!target.elements.empty()) {
      unpack(target, value, scope);
    } else if (target.attribute.empty()) {
      scope.set(target.name, std::move(value));
    } else {
      const Value object = look_up(target.name, scope);
      const auto* space = object.get_if<NamespacePtr>();
      if (space == nullptr) {
        throw Failure("cannot assign attribute on non-namespace object");
      }
      (*space)->set(target.attribute, std::move(value));
    }
  }

  void unpack(const Target& target, const Value& value, Scope& scope) {
    const auto items = elements(value, budget_);
    if (items.size() != target.elements.size()) {
      throw Failure(fmt::format("cannot unpack {} value(s) into {} name(s)", items.size(),
                                target.elements.size()));
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.elements[i], items[i], scope);
  }

  // --- expressions ------------------------------------------------------------------------------

  Value evaluate(const Expression& expression, Scope& scope) {
    const Budget::Nesting nesting(budget_);
    budget_.step();
    return std::visit([&](const auto& kind) { return eval(kind, scope); }, expression.kind);
  }

  Value look_up(const std::string& name, const Scope& scope) const {
    if (const Value* value = scope.find(name)) return *value;
    if (const Value* value = variables_.find_text(name)) return *value;
    if (const Builtin* function = find_function(name)) {
      return std::make_shared<const BoundFunction>(BoundFunction{function, nullptr});
    }
    return undefined(fmt::format("'{}' is undefined", name));
  }

  Value eval(const Literal& literal, Scope&) { return literal.value; }
  Value eval(const NameExpression& name, Scope& scope) { return look_up(name.name, scope); }

  Value eval(const ListExpression& list, Scope& scope) {
    std::vector<Value> items;
    for (const auto& item : list.items) items.push_back(evaluate(*item, scope));
    return make_list(std::move(items), budget_, list.kind);
  }

  Value eval(const DictExpression& dict, Scope& scope) {
    std::vector<std::pair<Value, Value>> entries;
    for (const auto& [key, value] : dict.entries) {
      Value evaluated_key = evaluate(*key, scope);
      entries.emplace_back(std::move(evaluated_key), evaluate(*value, scope));
    }
    return make_dict(std::move(entries), budget_);
  }

  Value eval(const SignExpression& sign, Scope& scope) {
    const Value value = negate(evaluate(*sign.operand, scope));
    return sign.negative ? value : negate(value);
  }

  Value eval(const NotExpression& expression, Scope& scope) {
    return !truthy(evaluate(*expression.operand, scope));
  }

  Value eval(const LogicalExpression& expression, Scope& scope) {
    Value value;
    for (const auto& operand : expression.operands) {
      value = evaluate(*operand, scope);
      if (truthy(value) != expression.is_and) break;
    }
    return value;
  }

  Value eval(const ArithmeticExpression& expression, Scope& scope) {
    Value value = evaluate(*expression.first, scope);
    for (const auto& [op, operand] : expression.rest) {
      value = arithmetic(op, value, evaluate(*operand, scope), budget_);
    }
    return value;
  }

  Value eval(const ConcatExpression& expression, Scope& scope) {
    std::string text;
    for (const auto& part : expression.parts) text += to_text(evaluate(*part, scope), budget_);
    return text;
  }

  Value eval(const CompareExpression& expression, Scope& scope) {
    Value left = evaluate(*expression.first, scope);
    for (const auto& [op, operand] : expression.rest) {
      Value right = evaluate(*operand, scope);
      if (!compare(op, left, right, budget_)) return false;
      left = std::move(right);
    }
    return true;
  }

  Value eval(const ConditionalExpression& expression, Scope& scope) {
    if (truthy(evaluate(*expression.test, scope))) return evaluate(*expression.then, scope);
    if (expression.otherwise != nullptr) return evaluate(*expression.otherwise, scope);
    return undefined("the inline if-expression evaluated to false and has no else");
  }

  Value eval(const ChainExpression& chain, Scope& scope) {
    Value value = evaluate(*chain.base, scope);
    for (const Step& step : chain.steps) {
      budget_.step();
      line_ = step.line;
      value = std::visit([&](const auto& kind) { return apply(kind, value, scope); }, step.kind);
    }
    return value;
  }

  // --- steps of a chain -------------------------------------------------------------------------

  Value apply(const AttributeStep& step, const Value& value, Scope&) {
    return attribute(value, step.name);
  }

  Value apply(const ItemStep& step, const Value& value, Scope& scope) {
    return item(value, evaluate(*step.index, scope), budget_);
  }

  Value apply(const SliceStep& step, const Value& value, Scope& scope) {
    auto bound = [&](const ExpressionPtr& part) {
      return part == nullptr ? Value() : evaluate(*part, scope);
    };
    const Value start = bound(step.start);
    const Value stop = bound(step.stop);
    return slice(value, start, stop, bound(step.step), budget_);
  }

  Value apply(const FilterStep& step, const Value& value, Scope& scope) {
    return call(*step.filter, value, arguments(step.arguments, scope), budget_);
  }

  Value apply(const TestStep& step, const Value& value, Scope& scope) {
    const Value verdict = call(*step.test, value, arguments(step.arguments, scope), budget_);
    return truthy(verdict) != step.negated;
  }

  Value apply(const CallStep& step, const Value& value, Scope& scope) {
    require_defined(value);
    if (const auto* macro = value.get_if<MacroValue>()) {
      return call_macro(*macro, arguments(step.arguments, scope));
    }
    const auto* function = value.get_if<FunctionPtr>();
    if (function == nullptr) {
      throw Failure(fmt::format("'{}' object is not callable", type_name(value)));
    }
    const Value none;
    const BoundFunction& bound = **function;
    return call(*bound.function, bound.self ? *bound.self : none, arguments(step.arguments, scope),
                budget_);
  }

  Arguments arguments(const CallArguments& expressions, Scope& scope) {
    Arguments result;
    for (const auto& expression : expressions.positional) {
      result.positional.push_back(evaluate(*expression, scope));
    }
    for (const auto& [name, expression] : expressions.named) {
      result.named.emplace_back(name, evaluate(*expression, scope));
    }
    return result;
  }

  // The text a macro prints. It sees the names around its definition, not those around its call.
  Value call_macro(const MacroValue& value, Arguments arguments) {
    const MacroStatement& macro = *value.macro;
    Scope scope(value.scope);
    bind_parameters(macro, std::move(arguments), scope);
    return capture(macro.body, scope);
  }

  // Positional arguments first, named ones for the rest, then defaults, which see the parameters.
  void bind_parameters(const MacroStatement& macro, Arguments arguments, Scope& scope) {
    const auto& parameters = macro.parameters;
    const std::size_t positional = arguments.positional.size();
    if (positional > parameters.size()) {
      throw Failure(fmt::format("macro '{}' takes not more than {} argument(s)", macro.name,
                                parameters.size()));
    }
    for (std::size_t i = 0; i < positional; ++i) {
      scope.set(parameters[i].name, std::move(arguments.positional[i]));
    }
    for (auto& [name, value] : arguments.named) {
      const auto it = std::find_if(
          parameters.begin() + static_cast<std::ptrdiff_t>(positional), parameters.end(),
          [&key = name](const auto& parameter) { return parameter.name == key; });
      if (it == parameters.end()) {
        throw Failure(fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, name));
      }
      scope.set(it->name, std::move(value));
    }
    for (const auto& [name, fallback] : parameters) {
      if (scope.has_own(name)) continue;
      scope.set(name, fallback != nullptr
                          ? evaluate(*fallback, scope)
                          : undefined(fmt::format("parameter '{}' was not provided", name)));
    }
  }

  const Dict& variables_;
  Budget& budget_;
  std::string out_;
  int line_ = 0;
};

}  // namespace

std::string render(const Block& body, const Dict& variables, Budget& budget) {
  return Interpreter(variables, budget).run(body);
}

}  // namespace levin::text::jinja
