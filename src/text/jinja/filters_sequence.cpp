// Filters on lists and dicts, and those that choose a value.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/text_algorithms.h"
#include "text/unicode.h"

namespace levin::text::jinja {
namespace {

Value filter_default(const Call& call) {
  const bool missing = call.input.is_undefined() || (call.flag(1, false) && !truthy(call.input));
  if (!missing) return call.input;
  return call.given(0) != nullptr ? *call.given(0) : Value("");
}

Value filter_length(const Call& call) {
  return length(call.input, call.budget);
}

Value filter_list(const Call& call) {
  return make_list(call.input_elements(), call.budget);
}

Value filter_first(const Call& call) {
  auto items = call.input_elements();
  return items.empty() ? undefined("No first item, sequence was empty.") : items.front();
}

Value filter_last(const Call& call) {
  if (call.input.is<IteratorPtr>()) throw Failure("'generator' object is not reversible");
  auto items = call.input_elements();
  return items.empty() ? undefined("No last item, sequence was empty.") : items.back();
}

Value filter_reverse(const Call& call) {
  if (call.input.text() != nullptr) {
    return slice(call.input, None{}, None{}, int64_t{-1}, call.budget);
  }
  auto items = call.input_elements();
  std::reverse(items.begin(), items.end());
  return make_iterator(std::move(items), call.budget);
}

Value filter_items(const Call& call) {
  if (call.input.is_undefined()) return make_iterator({}, call.budget);
  const Dict* dict = call.input.dict();
  if (dict == nullptr) throw Failure("Can only get item pairs from a mapping.");
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict->entries) {
    pairs.push_back(make_list({key, value}, call.budget, List::Kind::kTuple));
  }
  return make_iterator(std::move(pairs), call.budget);
}

// --- ordering -----------------------------------------------------------------------------------

// What elements are compared by: the attribute, if any, in lower case unless case counts.
struct SortKey {
  const Value* attribute = nullptr;
  bool case_sensitive = false;
  Budget& budget;

  Value operator()(const Value& element) const {
    return fold(attribute == nullptr ? element : by_path(element, *attribute, budget));
  }
  Value fold(const Value& value) const {
    if (case_sensitive || value.text() == nullptr) return value;
    budget.produce(value.text()->size());
    return to_lower(*value.text());
  }
};

// Stable, and with reverse still stable, as Python's sorted(). `keys` belong to `items`.
std::vector<Value> sort_by(const std::vector<Value>& items, const std::vector<Value>& keys,
                           bool reverse, Budget& budget) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return reverse ? less(keys[b], keys[a], budget) : less(keys[a], keys[b], budget);
  });
  std::vector<Value> sorted;
  sorted.reserve(order.size());
  for (const std::size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

// sort(attribute="a,b.c") compares by a, then by b.c: the key is a list, as in Jinja.
Value sort_key(const Value& element, const Value* attribute, const SortKey& key) {
  std::vector<Value> parts;
  if (attribute == nullptr || attribute->text() == nullptr) {
    parts.push_back(key(element));
  } else {
    for (const std::string_view path : split(*attribute->text(), ",", -1, false)) {
      parts.push_back(key.fold(by_path(element, std::string(path), key.budget)));
    }
  }
  return make_list(std::move(parts), key.budget);
}

Value filter_sort(const Call& call) {
  const auto items = call.input_elements();
  const Value* attribute = call.optional(2);
  const SortKey key{attribute, call.flag(1, false), call.budget};
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& element : items) keys.push_back(sort_key(element, attribute, key));
  return make_list(sort_by(items, keys, call.flag(0, false), call.budget), call.budget);
}

Value filter_dictsort(const Call& call) {
  const Dict* dict = call.input.dict();
  if (dict == nullptr) throw Failure("dictsort needs a mapping");
  const std::string by = call.text(1, "key");
  if (by != "key" && by != "value") {
    throw Failure("You can only sort by either \"key\" or \"value\"");
  }
  const SortKey key{nullptr, call.flag(0, false), call.budget};
  std::vector<Value> pairs;
  std::vector<Value> keys;
  for (const auto& [name, value] : dict->entries) {
    pairs.push_back(make_list({name, value}, call.budget, List::Kind::kTuple));
    keys.push_back(key(by == "key" ? name : value));
  }
  return make_list(sort_by(pairs, keys, call.flag(2, false), call.budget), call.budget);
}

Value filter_unique(const Call& call) {
  const SortKey key{call.optional(1), call.flag(0, false), call.budget};
  std::unordered_set<std::string> seen;
  std::vector<Value> result;
  for (const Value& element : call.input_elements()) {
    const Value compared = key(element);
    auto hashed = hash_key(compared);
    if (!hashed) throw Failure(fmt::format("unhashable type: '{}'", type_name(compared)));
    call.budget.produce(hashed->size());
    if (seen.insert(std::move(*hashed)).second) result.push_back(element);
  }
  return make_iterator(std::move(result), call.budget);
}

// The first of the elements that none comes before.
template <typename Before>
Value extreme(const Call& call, Before&& before) {
  const SortKey key{call.optional(1), call.flag(0, false), call.budget};
  const auto items = call.input_elements();
  if (items.empty()) return undefined("No aggregated item, sequence was empty.");
  std::size_t best = 0;
  Value best_key = key(items[0]);
  for (std::size_t i = 1; i < items.size(); ++i) {
    Value candidate = key(items[i]);
    if (!before(candidate, best_key)) continue;
    best = i;
    best_key = std::move(candidate);
  }
  return items[best];
}

Value filter_min(const Call& call) {
  return extreme(call, [&](const Value& a, const Value& b) { return less(a, b, call.budget); });
}

Value filter_max(const Call& call) {
  return extreme(call, [&](const Value& a, const Value& b) { return less(b, a, call.budget); });
}

Value filter_sum(const Call& call) {
  Value total = call.given(1) != nullptr ? *call.given(1) : Value(int64_t{0});
  if (total.text() != nullptr) throw Failure("sum() can't sum strings");
  const Value* attribute = call.optional(0);
  for (const Value& element : call.input_elements()) {
    const Value term = attribute == nullptr ? element : by_path(element, *attribute, call.budget);
    total = arithmetic(ArithmeticOp::kAdd, total, term, call.budget);
  }
  return total;
}

// --- filters that take a filter or a test --------------------------------------------------------

const std::string& name_argument(const Arguments& arguments, std::size_t position,
                                 std::string_view what) {
  if (arguments.positional.size() <= position || arguments.positional[position].text() == nullptr) {
    throw Failure(fmt::format("the name of a {} is missing", what));
  }
  return *arguments.positional[position].text();
}

Arguments without_first(const Arguments& arguments, std::size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

// map(attribute="a.b", default=x)
std::vector<Value> map_attribute(const Call& call) {
  const Value* path = nullptr;
  const Value* fallback = nullptr;
  for (const auto& [name, value] : call.arguments.named) {
    if (name == "attribute") {
      path = &value;
    } else if (name == "default") {
      fallback = value.is_none() ? nullptr : &value;
    } else {
      throw Failure(fmt::format("Unexpected keyword argument '{}'", name));
    }
  }
  if (path == nullptr) throw Failure("map requires a filter argument");
  std::vector<Value> result;
  for (const Value& element : call.input_elements()) {
    result.push_back(by_path(element, *path, call.budget, fallback));
  }
  return result;
}

// Jinja's generators look at nothing, not even their arguments, when the input is false.
Value filter_map(const Call& call) {
  if (!truthy(call.input)) return make_iterator({}, call.budget);
  if (call.arguments.positional.empty()) return make_iterator(map_attribute(call), call.budget);
  const std::string& name = name_argument(call.arguments, 0, "filter");
  const Builtin* filter = find_filter(name);
  if (filter == nullptr) throw Failure(fmt::format("No filter named '{}'.", name));
  const Arguments rest = without_first(call.arguments, 1);
  std::vector<Value> result;
  for (const Value& element : call.input_elements()) {
    result.push_back(jinja::call(*filter, element, rest, call.budget));
  }
  return make_iterator(std::move(result), call.budget);
}

// select, reject, selectattr and rejectattr: keeps the elements for which the test on them, or on
// an attribute of theirs, gives `wanted`. Without a test, truth decides.
Value select_if(const Call& call, bool on_attribute, bool wanted) {
  if (!truthy(call.input)) return make_iterator({}, call.budget);
  const Arguments& arguments = call.arguments;
  const std::size_t test_position = on_attribute ? 1 : 0;
  if (on_attribute && arguments.positional.empty()) {
    throw Failure("Missing parameter for attribute name");
  }
  const Builtin* test = nullptr;
  Arguments rest;
  if (arguments.positional.size() > test_position) {
    const std::string& name = name_argument(arguments, test_position, "test");
    test = find_test(name);
    if (test == nullptr) throw Failure(fmt::format("No test named '{}'.", name));
    rest = without_first(arguments, test_position + 1);
  }
  std::vector<Value> result;
  for (Value& element : call.input_elements()) {
    const Value tested =
        on_attribute ? by_path(element, arguments.positional[0], call.budget) : element;
    const Value verdict = test == nullptr ? tested : jinja::call(*test, tested, rest, call.budget);
    if (truthy(verdict) == wanted) result.push_back(std::move(element));
  }
  return make_iterator(std::move(result), call.budget);
}

Value filter_select(const Call& call) {
  return select_if(call, false, true);
}

Value filter_reject(const Call& call) {
  return select_if(call, false, false);
}

Value filter_selectattr(const Call& call) {
  return select_if(call, true, true);
}

Value filter_rejectattr(const Call& call) {
  return select_if(call, true, false);
}

}  // namespace

Table sequence_filters() {
  static const Builtin kTable[] = {
      {"count", {}, filter_length},
      {"d", {"default_value", "boolean"}, filter_default},
      {"default", {"default_value", "boolean"}, filter_default},
      {"dictsort", {"case_sensitive", "by", "reverse"}, filter_dictsort},
      {"first", {}, filter_first},
      {"items", {}, filter_items},
      {"last", {}, filter_last},
      {"length", {}, filter_length},
      {"list", {}, filter_list},
      {"map", {"*"}, filter_map},
      {"max", {"case_sensitive", "attribute"}, filter_max},
      {"min", {"case_sensitive", "attribute"}, filter_min},
      {"reject", {"*"}, filter_reject},
      {"rejectattr", {"*"}, filter_rejectattr},
      {"reverse", {}, filter_reverse},
      {"select", {"*"}, filter_select},
      {"selectattr", {"*"}, filter_selectattr},
      {"sort", {"reverse", "case_sensitive", "attribute"}, filter_sort},
      {"sum", {"attribute", "start"}, filter_sum},
      {"unique", {"case_sensitive", "attribute"}, filter_unique},
  };
  return kTable;
}

}  // namespace levin::text::jinja
