// Functions that a template calls by name.
#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/operators.h"

namespace levin::text::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // Jinja's sandbox has the same

// range(stop) or range(start, stop, step)
Value function_range(const Call& call) {
  if (call.optional(0) == nullptr) throw Failure("range needs at least one argument");
  const bool only_stop = call.optional(1) == nullptr;
  const int64_t start = only_stop ? 0 : call.integer(0, 0);
  const int64_t stop = call.integer(only_stop ? 0 : 1, 0);
  const int64_t step = call.integer(2, 1);
  if (step == 0) throw Failure("range() arg 3 must not be zero");
  std::vector<Value> items;
  int64_t value = start;
  while (step > 0 ? value < stop : value > stop) {
    if (static_cast<int64_t>(items.size()) == kMaxRange) {
      throw Failure(fmt::format("a range is longer than {}", kMaxRange));
    }
    items.emplace_back(value);
    if (__builtin_add_overflow(value, step, &value)) break;
  }
  return make_list(std::move(items), call.budget, List::Kind::kRange);
}

// The entries of dict(mapping, name=value, ...) and namespace(mapping, name=value, ...).
std::vector<std::pair<Value, Value>> keyword_entries(const Call& call) {
  std::vector<std::pair<Value, Value>> entries;
  if (call.arguments.positional.size() > 1) throw Failure("takes at most 1 positional argument");
  if (!call.arguments.positional.empty()) {
    const Dict* dict = call.arguments.positional[0].dict();
    if (dict == nullptr) throw Failure("the positional argument must be a mapping");
    entries = dict->entries;
  }
  for (const auto& [name, value] : call.arguments.named) entries.emplace_back(name, value);
  return entries;
}

Value function_dict(const Call& call) {
  return make_dict(keyword_entries(call), call.budget);
}

Value function_namespace(const Call& call) {
  auto space = std::make_shared<Namespace>();
  for (auto& [key, value] : keyword_entries(call)) {
    if (key.text() == nullptr) throw Failure("the names of a namespace must be strings");
    call.budget.produce(key.text()->size() + sizeof(Value));
    space->set(*key.text(), std::move(value));
  }
  return space;
}

Value function_raise_exception(const Call& call) {
  throw Failure(to_text(call.required(0), call.budget));
}

}  // namespace

Table functions() {
  static const Builtin kTable[] = {
      {"dict", {"*"}, function_dict},
      {"namespace", {"*"}, function_namespace},
      {"raise_exception", {"message"}, function_raise_exception},
      {"range", {"start", "stop", "step"}, function_range},
  };
  return kTable;
}

}  // namespace levin::text::jinja
