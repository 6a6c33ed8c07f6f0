// What Python's operators do with values: arithmetic, comparison, membership, subscripts,
// iteration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/jinja/value.h"

namespace levin::text::jinja {

enum class ArithmeticOp { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class CompareOp { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

// All fail, as Python would raise, on operands that the operator does not take, on integers beyond
// 64 bits and on an undefined value. String formatting with % is refused.
Value arithmetic(ArithmeticOp op, const Value& left, const Value& right, Budget& budget);
Value negate(const Value& value);
bool compare(CompareOp op, const Value& left, const Value& right, Budget& budget);
bool equal(const Value& left, const Value& right, Budget& budget);
bool less(const Value& left, const Value& right, Budget& budget);

// object[key]. A missing key, an index out of range and a subscript of the wrong kind give an
// undefined value; a string key may also name a method.
Value item(const Value& object, const Value& key, Budget& budget);
// object.name: a method or attribute of that name before an entry of a dict.
Value attribute(const Value& object, const std::string& name);
// object[start:stop:step]; a bound that is left out is none.
Value slice(const Value& object, const Value& start, const Value& stop, const Value& step,
            Budget& budget);

// What filters look up for their argument `attribute`: "a.b.0" is item(item(item(value, "a"), "b"),
// 0). What is not there is replaced by `fallback`, unless that is null.
Value by_path(const Value& value, const Value& path, Budget& budget,
              const Value* fallback = nullptr);

// len(value): characters of a string, elements of a list or dict; 0 for an undefined value.
int64_t length(const Value& value, Budget& budget);

// The elements as a for loop sees them: characters, items, keys. Reading a generator empties it.
// Nothing when the value cannot be iterated over.
std::optional<std::vector<Value>> try_elements(const Value& value, Budget& budget);
std::vector<Value> elements(const Value& value, Budget& budget);

// Fails with the message of an undefined value; does nothing with any other.
void require_defined(const Value& value);

}  // namespace levin::text::jinja
