#include "text/jinja/builtins.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "text/jinja/format.h"
#include "text/jinja/operators.h"

namespace levin::text::jinja {
namespace {

const Builtin* find_in(std::initializer_list<Table> tables, std::string_view name) {
  for (const Table table : tables) {
    for (const Builtin& builtin : table) {
      if (builtin.name == name) return &builtin;
    }
  }
  return nullptr;
}

// Python's other methods. Those that change a list or dict are out of bounds in chat templates
// anyway (Jinja's immutable sandbox).
constexpr std::string_view kOtherTextMethods[] = {
    "casefold",  "center",    "encode",      "expandtabs", "format",     "format_map",
    "isalnum",   "isalpha",   "isascii",     "isdecimal",  "isdigit",    "isidentifier",
    "islower",   "isnumeric", "isprintable", "isspace",    "istitle",    "isupper",
    "ljust",     "maketrans", "partition",   "rjust",      "rpartition", "swapcase",
    "translate", "zfill"};
constexpr std::string_view kOtherListMethods[] = {"append", "clear",  "copy",    "extend", "insert",
                                                  "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kOtherDictMethods[] = {"clear",   "copy",       "fromkeys", "pop",
                                                  "popitem", "setdefault", "update"};
constexpr std::string_view kOtherNumberMethods[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes"};

struct Methods {
  Table known;
  std::span<const std::string_view> others;
};

Methods methods_of(const Value& object) {
  if (object.text() != nullptr) return {text_methods(), kOtherTextMethods};
  if (object.dict() != nullptr) return {dict_methods(), kOtherDictMethods};
  if (object.number()) return {{}, kOtherNumberMethods};
  if (object.is<LoopPtr>()) return {loop_methods(), {}};
  const List* list = object.list();
  if (list == nullptr) return {};
  if (list->kind == List::Kind::kList) return {list_methods(), kOtherListMethods};
  if (list->kind == List::Kind::kTuple) return {list_methods(), {}};
  return {};
}

}  // namespace

Call::Call(const Builtin& builtin, const Value& call_input, const Arguments& call_arguments,
           Budget& call_budget)
    : input(call_input), arguments(call_arguments), budget(call_budget), builtin_(builtin) {
  const auto& parameters = builtin.parameters;
  if (parameters.size() == 1 && parameters[0] == "*") return;
  by_parameter_.resize(parameters.size(), nullptr);
  if (arguments.positional.size() > parameters.size()) {
    throw Failure(fmt::format("{} takes at most {} argument(s)", builtin.name, parameters.size()));
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    by_parameter_[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto it = std::find(parameters.begin(), parameters.end(), name);
    if (it == parameters.end()) {
      throw Failure(fmt::format("{} has no argument '{}'", builtin.name, name));
    }
    const Value*& slot = by_parameter_[static_cast<std::size_t>(it - parameters.begin())];
    if (slot != nullptr) {
      throw Failure(fmt::format("{} got the argument '{}' twice", builtin.name, name));
    }
    slot = &value;
  }
}

const Value& Call::required(std::size_t parameter) const {
  if (given(parameter) != nullptr) return *given(parameter);
  throw Failure(
      fmt::format("{} needs the argument '{}'", builtin_.name, builtin_.parameters[parameter]));
}

const Value* Call::optional(std::size_t parameter) const {
  const Value* value = given(parameter);
  return value == nullptr || value->is_none() ? nullptr : value;
}

int64_t Call::integer(std::size_t parameter, int64_t fallback) const {
  const Value* value = given(parameter);
  if (value == nullptr) return fallback;
  require_defined(*value);
  if (const auto integer = value->integer()) return *integer;
  throw Failure(fmt::format("the argument '{}' of {} must be an integer, not {}",
                            builtin_.parameters[parameter], builtin_.name, type_name(*value)));
}

bool Call::flag(std::size_t parameter, bool fallback) const {
  const Value* value = given(parameter);
  return value == nullptr ? fallback : truthy(*value);
}

const std::string& Call::required_text(std::size_t parameter) const {
  const Value& value = required(parameter);
  require_defined(value);
  if (value.text() != nullptr) return *value.text();
  throw Failure(fmt::format("the argument '{}' of {} must be a string, not {}",
                            builtin_.parameters[parameter], builtin_.name, type_name(value)));
}

std::string Call::text(std::size_t parameter, std::string_view fallback) const {
  return given(parameter) == nullptr ? std::string(fallback) : required_text(parameter);
}

std::string Call::input_text() const {
  return to_text(input, budget);
}

std::vector<Value> Call::input_elements() const {
  return elements(input, budget);
}

Value Call::result(std::string text) const {
  budget.produce(text.size());
  return text;
}

const Builtin* find_filter(std::string_view name) {
  return find_in({text_filters(), sequence_filters(), number_filters()}, name);
}

const Builtin* find_test(std::string_view name) {
  return find_in({tests()}, name);
}

const Builtin* find_function(std::string_view name) {
  return find_in({functions()}, name);
}

std::optional<Value> find_method(const Value& object, std::string_view name) {
  const Methods methods = methods_of(object);
  if (const Builtin* method = find_in({methods.known}, name)) {
    return std::make_shared<const BoundFunction>(
        BoundFunction{method, std::make_unique<const Value>(object)});
  }
  const bool other =
      std::find(methods.others.begin(), methods.others.end(), name) != methods.others.end();
  if (other || name.starts_with("__")) {
    throw Failure(fmt::format("{}.{} is not implemented", type_name(object), name));
  }
  return std::nullopt;
}

Value call(const Builtin& builtin, const Value& input, const Arguments& arguments, Budget& budget) {
  budget.step();
  return builtin.run(Call(builtin, input, arguments, budget));
}

}  // namespace levin::text::jinja
