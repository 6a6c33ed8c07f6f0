// Arithmetic of operators.h: Python's, on 64-bit integers.
#include <fmt/format.h>

#include <cmath>

#include "text/jinja/operators.h"

namespace levin::text::jinja {
namespace {

const char* symbol_of(ArithmeticOp op) {
  constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};
  return kSymbols[static_cast<int>(op)];
}

[[noreturn]] void fail_overflow() {
  throw Failure("integer result does not fit 64 bits");
}

[[noreturn]] void fail_division() {
  throw Failure("division by zero");
}

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) fail_division();
  if (b == -1) {
    int64_t result = 0;
    if (__builtin_sub_overflow(int64_t{0}, a, &result)) fail_overflow();
    return result;
  }
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

// The result has the sign of b.
int64_t modulo(int64_t a, int64_t b) {
  if (b == 0) fail_division();
  if (b == -1) return 0;
  const int64_t remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
  return result;
}

struct QuotientAndRemainder {
  double quotient;
  double remainder;
};

// divmod() of CPython's floats.
QuotientAndRemainder divide_with_remainder(double a, double b) {
  if (b == 0) fail_division();
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder == 0) {
    remainder = std::copysign(0.0, b);
  } else if ((b < 0) != (remainder < 0)) {
    remainder += b;
    quotient -= 1;
  }
  if (quotient == 0) return {std::copysign(0.0, a / b), remainder};
  const double whole = std::floor(quotient);
  return {quotient - whole > 0.5 ? whole + 1 : whole, remainder};
}

double power(double base, double exponent) {
  if (base == 0 && exponent < 0) fail_division();
  if (base < 0 && exponent != std::floor(exponent)) {
    throw Failure("the power is a complex number");
  }
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && !std::isinf(base) && !std::isinf(exponent)) {
    throw Failure("the power is too large for a float");
  }
  return result;
}

Value on_integers(ArithmeticOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case ArithmeticOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) fail_overflow();
      return result;
    case ArithmeticOp::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow();
      return result;
    case ArithmeticOp::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow();
      return result;
    case ArithmeticOp::kDivide:
      if (b == 0) fail_division();
      return static_cast<double>(a) / static_cast<double>(b);
    case ArithmeticOp::kFloorDivide:
      return floor_divide(a, b);
    case ArithmeticOp::kModulo:
      return modulo(a, b);
    case ArithmeticOp::kPower:
      if (b < 0) return power(static_cast<double>(a), static_cast<double>(b));
      return power(a, b);
  }
  return {};
}

Value on_floats(ArithmeticOp op, double a, double b) {
  switch (op) {
    case ArithmeticOp::kAdd:
      return a + b;
    case ArithmeticOp::kSubtract:
      return a - b;
    case ArithmeticOp::kMultiply:
      return a * b;
    case ArithmeticOp::kDivide:
      if (b == 0) fail_division();
      return a / b;
    case ArithmeticOp::kFloorDivide:
      return divide_with_remainder(a, b).quotient;
    case ArithmeticOp::kModulo:
      return divide_with_remainder(a, b).remainder;
    case ArithmeticOp::kPower:
      return power(a, b);
  }
  return {};
}

std::size_t repeats(int64_t count) {
  return count > 0 ? static_cast<std::size_t>(count) : 0;
}

// `size` bytes or elements, `count` times, unless that is absurd.
std::size_t repeated_size(std::size_t size, std::size_t count) {
  std::size_t total = 0;
  if (__builtin_mul_overflow(size, count, &total)) throw Failure("the repetition is too long");
  return total;
}

Value repeat(const std::string& text, int64_t count, Budget& budget) {
  const std::size_t total = repeated_size(text.size(), repeats(count));
  budget.produce(total);
  std::string result;
  result.reserve(total);
  for (std::size_t i = 0; i < repeats(count) && total > 0; ++i) result += text;
  return result;
}

Value repeat(const List& list, int64_t count, Budget& budget) {
  const std::size_t total = repeated_size(list.items.size(), repeats(count));
  budget.produce(repeated_size(total, sizeof(Value)));
  std::vector<Value> items;
  items.reserve(total);
  for (std::size_t i = 0; i < repeats(count) && total > 0; ++i) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return make_list(std::move(items), budget, list.kind);
}

bool concatenates(const List& list) {
  return list.kind == List::Kind::kList || list.kind == List::Kind::kTuple;
}

Value join(const List& left, const List& right, Budget& budget) {
  budget.produce((left.items.size() + right.items.size()) * sizeof(Value));
  std::vector<Value> items = left.items;
  items.insert(items.end(), right.items.begin(), right.items.end());
  return make_list(std::move(items), budget, left.kind);
}

// + and * of strings and lists; nothing when the operands are not of that sort.
std::optional<Value> on_sequences(ArithmeticOp op, const Value& left, const Value& right,
                                  Budget& budget) {
  if (op == ArithmeticOp::kAdd) {
    if (left.text() != nullptr && right.text() != nullptr) {
      budget.produce(left.text()->size() + right.text()->size());
      return *left.text() + *right.text();
    }
    if (left.list() != nullptr && right.list() != nullptr && concatenates(*left.list()) &&
        left.list()->kind == right.list()->kind) {
      return join(*left.list(), *right.list(), budget);
    }
  }
  if (op == ArithmeticOp::kMultiply) {
    for (const auto& [sequence, count] : {std::pair(&left, &right), std::pair(&right, &left)}) {
      const auto times = count->integer();
      if (!times) continue;
      if (sequence->text() != nullptr) return repeat(*sequence->text(), *times, budget);
      const List* list = sequence->list();
      if (list != nullptr && concatenates(*list)) return repeat(*list, *times, budget);
    }
  }
  if (op == ArithmeticOp::kModulo && left.text() != nullptr) {
    throw Failure("string formatting with % is not implemented");
  }
  return std::nullopt;
}

}  // namespace

Value arithmetic(ArithmeticOp op, const Value& left, const Value& right, Budget& budget) {
  require_defined(left);
  require_defined(right);
  if (left.integer() && right.integer()) return on_integers(op, *left.integer(), *right.integer());
  if (left.number() && right.number()) return on_floats(op, *left.number(), *right.number());
  if (auto result = on_sequences(op, left, right, budget)) return std::move(*result);
  throw Failure(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", symbol_of(op),
                            type_name(left), type_name(right)));
}

Value negate(const Value& value) {
  require_defined(value);
  if (const auto integer = value.integer())
    return on_integers(ArithmeticOp::kSubtract, 0, *integer);
  if (const auto number = value.number()) return -*number;
  throw Failure(fmt::format("bad operand type for unary -: '{}'", type_name(value)));
}

}  // namespace levin::text::jinja
