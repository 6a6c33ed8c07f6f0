// Everything a template can name without defining it: filters, tests, functions and the methods of
// strings, lists and dicts. Each is one row of a table: a name, its parameters, a function.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace levin::text::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// One call of a built-in. `input` is what stands left of the bar, of `is` or of the method's dot.
class Call {
 public:
  // Matches the arguments with the parameters. Fails on too many and on unknown or doubled names.
  Call(const Builtin& builtin, const Value& input, const Arguments& arguments, Budget& budget);

  const Value& input;
  const Arguments& arguments;
  Budget& budget;

  // The argument for the parameter at this position, or null when it was not given.
  const Value* given(std::size_t parameter) const { return by_parameter_[parameter]; }
  const Value& required(std::size_t parameter) const;
  const std::string& required_text(std::size_t parameter) const;
  // With a fallback for what was not given; fail on another type.
  int64_t integer(std::size_t parameter, int64_t fallback) const;
  bool flag(std::size_t parameter, bool fallback) const;
  std::string text(std::size_t parameter, std::string_view fallback) const;
  // Nothing when it was not given or is none.
  const Value* optional(std::size_t parameter) const;

  // str(input), as most text filters begin.
  std::string input_text() const;
  std::vector<Value> input_elements() const;
  // Charges for the new text.
  Value result(std::string text) const;

 private:
  const Builtin& builtin_;
  std::vector<const Value*> by_parameter_;
};

struct Builtin {
  std::string_view name;
  std::vector<std::string_view> parameters;  // "*" alone: takes `arguments` as they are
  Value (*run)(const Call& call);
};

using Table = std::span<const Builtin>;

// Each group lives in a file of its own.
Table text_filters();
Table sequence_filters();
Table number_filters();
Table tests();
Table functions();
Table text_methods();
Table list_methods();
Table dict_methods();
Table loop_methods();

// Null when there is none of this name.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_function(std::string_view name);
// The method bound to `object`, or nothing. Fails on a method that Python has and levin does not,
// which must not be taken for an attribute that is not there.
std::optional<Value> find_method(const Value& object, std::string_view name);

Value call(const Builtin& builtin, const Value& input, const Arguments& arguments, Budget& budget);

}  // namespace levin::text::jinja
