// Tests, which stand right of `is`.
#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"

namespace levin::text::jinja {
namespace {

// value % divisor == remainder
bool has_remainder(const Call& call, const Value& divisor, int64_t remainder) {
  const Value rest = arithmetic(ArithmeticOp::kModulo, call.input, divisor, call.budget);
  return equal(rest, remainder, call.budget);
}

template <CompareOp op>
Value test_compare(const Call& call) {
  return compare(op, call.input, call.required(0), call.budget);
}

Value test_boolean(const Call& call) {
  return call.input.is<bool>();
}

Value test_callable(const Call& call) {
  return call.input.is<FunctionPtr>() || call.input.is<MacroValue>() || call.input.is<LoopPtr>() ||
         call.input.is_undefined();  // Python asks for __call__, which even these have
}

Value test_defined(const Call& call) {
  return !call.input.is_undefined();
}

Value test_divisibleby(const Call& call) {
  return has_remainder(call, call.required(0), 0);
}

Value test_even(const Call& call) {
  return has_remainder(call, int64_t{2}, 0);
}

Value test_false(const Call& call) {
  return call.input.is<bool>() && !truthy(call.input);
}

Value test_float(const Call& call) {
  return call.input.is<double>();
}

Value test_integer(const Call& call) {
  return call.input.is<int64_t>();
}

Value test_iterable(const Call& call) {
  const Value& value = call.input;
  return value.is_undefined() || value.text() != nullptr || value.list() != nullptr ||
         value.dict() != nullptr || value.is<IteratorPtr>() || value.is<LoopPtr>();
}

Value test_mapping(const Call& call) {
  return call.input.dict() != nullptr;
}

Value test_none(const Call& call) {
  return call.input.is_none();
}

Value test_number(const Call& call) {
  return call.input.number().has_value();
}

Value test_odd(const Call& call) {
  return has_remainder(call, int64_t{2}, 1);
}

// Identity, which for anything but the three constants depends on how Python keeps its objects.
Value test_sameas(const Call& call) {
  const Value& other = call.required(0);
  auto is_constant = [](const Value& value) { return value.is_none() || value.is<bool>(); };
  if (!is_constant(call.input) && !is_constant(other)) {
    throw Failure("sameas is only implemented for true, false and none");
  }
  return call.input.data().index() == other.data().index() && equal(call.input, other, call.budget);
}

// What has a length and can be subscripted.
Value test_sequence(const Call& call) {
  const Value& value = call.input;
  const List* list = value.list();
  const bool view =
      list != nullptr && (list->kind == List::Kind::kKeys || list->kind == List::Kind::kValues ||
                          list->kind == List::Kind::kItems);
  return value.is_undefined() || value.text() != nullptr || value.dict() != nullptr ||
         (list != nullptr && !view);
}

Value test_string(const Call& call) {
  return call.input.text() != nullptr;
}

Value test_true(const Call& call) {
  return call.input.is<bool>() && truthy(call.input);
}

Value test_undefined(const Call& call) {
  return call.input.is_undefined();
}

}  // namespace

Table tests() {
  static const Builtin kTable[] = {
      {"!=", {"other"}, test_compare<CompareOp::kNotEqual>},
      {"<", {"other"}, test_compare<CompareOp::kLess>},
      {"<=", {"other"}, test_compare<CompareOp::kLessEqual>},
      {"==", {"other"}, test_compare<CompareOp::kEqual>},
      {">", {"other"}, test_compare<CompareOp::kGreater>},
      {">=", {"other"}, test_compare<CompareOp::kGreaterEqual>},
      {"boolean", {}, test_boolean},
      {"callable", {}, test_callable},
      {"defined", {}, test_defined},
      {"divisibleby", {"num"}, test_divisibleby},
      {"eq", {"other"}, test_compare<CompareOp::kEqual>},
      {"equalto", {"other"}, test_compare<CompareOp::kEqual>},
      {"even", {}, test_even},
      {"false", {}, test_false},
      {"float", {}, test_float},
      {"ge", {"other"}, test_compare<CompareOp::kGreaterEqual>},
      {"greaterthan", {"other"}, test_compare<CompareOp::kGreater>},
      {"gt", {"other"}, test_compare<CompareOp::kGreater>},
      {"in", {"seq"}, test_compare<CompareOp::kIn>},
      {"integer", {}, test_integer},
      {"iterable", {}, test_iterable},
      {"le", {"other"}, test_compare<CompareOp::kLessEqual>},
      {"lessthan", {"other"}, test_compare<CompareOp::kLess>},
      {"lt", {"other"}, test_compare<CompareOp::kLess>},
      {"mapping", {}, test_mapping},
      {"ne", {"other"}, test_compare<CompareOp::kNotEqual>},
      {"none", {}, test_none},
      {"number", {}, test_number},
      {"odd", {}, test_odd},
      {"sameas", {"other"}, test_sameas},
      {"sequence", {}, test_sequence},
      {"string", {}, test_string},
      {"true", {}, test_true},
      {"undefined", {}, test_undefined},
  };
  return kTable;
}

}  // namespace levin::text::jinja
