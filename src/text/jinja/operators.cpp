#include "text/jinja/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "text/jinja/builtins.h"
#include "text/jinja/loop.h"
#include "text/jinja/text_algorithms.h"
#include "text/utf8.h"

namespace levin::text::jinja {
namespace {

// -1, 0 or 1; 2 when one is NaN. Exact also where an int has more digits than a double.
int order_of_numbers(const Value& left, const Value& right) {
  auto order = [](auto a, auto b) { return a < b ? -1 : a > b ? 1 : a == b ? 0 : 2; };
  const auto a = left.integer();
  const auto b = right.integer();
  if (a && b) return order(*a, *b);
  if (!a && !b) return order(*left.number(), *right.number());
  if (!a) {
    const int reversed = order_of_numbers(right, left);
    return reversed == 2 ? 2 : -reversed;
  }
  const double number = *right.number();
  if (!(number >= -0x1p63)) return number != number ? 2 : 1;
  if (number >= 0x1p63) return -1;
  const auto whole = static_cast<int64_t>(number);
  if (*a != whole) return order(*a, whole);
  return order(0.0, number - static_cast<double>(whole));
}

bool is_view(const List& list) {
  using Kind = List::Kind;
  return list.kind == Kind::kKeys || list.kind == Kind::kValues || list.kind == Kind::kItems;
}

bool equal_lists(const List& left, const List& right, Budget& budget) {
  if (is_view(left) || is_view(right)) throw Failure("views of a dict cannot be compared");
  if (left.kind != right.kind || left.items.size() != right.items.size()) return false;
  for (std::size_t i = 0; i < left.items.size(); ++i) {
    if (!equal(left.items[i], right.items[i], budget)) return false;
  }
  return true;
}

bool equal_dicts(const Dict& left, const Dict& right, Budget& budget) {
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [key, value] : left.entries) {
    const Value* other = right.find(key);
    if (other == nullptr || !equal(value, *other, budget)) return false;
  }
  return true;
}

[[noreturn]] void fail_order(const Value& left, const Value& right) {
  throw Failure(fmt::format("'<' not supported between instances of '{}' and '{}'", type_name(left),
                            type_name(right)));
}

bool less_lists(const List& left, const List& right, Budget& budget) {
  const std::size_t both = std::min(left.items.size(), right.items.size());
  for (std::size_t i = 0; i < both; ++i) {
    if (!equal(left.items[i], right.items[i], budget)) {
      return less(left.items[i], right.items[i], budget);
    }
  }
  return left.items.size() < right.items.size();
}

// `needle in haystack`
bool contains(const Value& haystack, const Value& needle, Budget& budget) {
  if (const std::string* text = haystack.text()) {
    require_defined(needle);
    if (needle.text() == nullptr) {
      throw Failure(
          fmt::format("'in <string>' requires string as left operand, not {}", type_name(needle)));
    }
    budget.step(text->size() / 64);
    return text->find(*needle.text()) != std::string::npos;
  }
  if (const Dict* dict = haystack.dict()) {
    if (!hash_key(needle)) throw Failure(fmt::format("unhashable type: '{}'", type_name(needle)));
    return dict->find(needle) != nullptr;
  }
  const auto items = try_elements(haystack, budget);
  if (!items) {
    throw Failure(fmt::format("argument of type '{}' is not iterable", type_name(haystack)));
  }
  return std::any_of(items->begin(), items->end(),
                     [&](const Value& item) { return equal(item, needle, budget); });
}

// Bounds of a slice as CPython computes them: start, stop, step, and how many elements.
struct SliceRange {
  int64_t start;
  int64_t step;
  int64_t count;
};

std::optional<int64_t> slice_bound(const Value& value) {
  if (value.is_none()) return std::nullopt;
  require_defined(value);
  if (const auto integer = value.integer()) return integer;
  throw Failure("slice indices must be integers or None");
}

SliceRange resolve_slice(const Value& start, const Value& stop, const Value& step, int64_t size) {
  const int64_t by = slice_bound(step).value_or(1);
  if (by == 0) throw Failure("slice step cannot be zero");
  const int64_t lowest = by > 0 ? 0 : -1;
  const int64_t highest = by > 0 ? size : size - 1;
  auto place = [&](const Value& bound, int64_t missing) {
    const auto given = slice_bound(bound);
    if (!given) return missing;
    const int64_t absolute = *given < 0 ? *given + size : *given;
    return std::clamp(absolute, lowest, highest);
  };
  const int64_t from = place(start, by > 0 ? lowest : highest);
  const int64_t to = place(stop, by > 0 ? highest : lowest);
  const int64_t distance = by > 0 ? to - from : from - to;
  const uint64_t stride =
      by > 0 ? static_cast<uint64_t>(by) : uint64_t{0} - static_cast<uint64_t>(by);
  const int64_t count =
      distance <= 0 ? 0 : static_cast<int64_t>((static_cast<uint64_t>(distance) - 1) / stride) + 1;
  return {from, by, count};
}

std::vector<std::string_view> characters(std::string_view text, Budget& budget) {
  budget.step(text.size() / 16);
  std::vector<std::string_view> result;
  for_each_character(text, [&](char32_t, std::string_view bytes) { result.push_back(bytes); });
  return result;
}

// The element at a Python index (negative ones count from the end), or nothing.
std::optional<Value> element_at(const Value& sequence, int64_t index, Budget& budget) {
  const int64_t size = length(sequence, budget);
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  const auto at = static_cast<std::size_t>(index);
  if (const List* list = sequence.list()) return list->items[at];
  return std::string(characters(*sequence.text(), budget)[at]);
}

}  // namespace

void require_defined(const Value& value) {
  if (const auto* nothing = value.get_if<Undefined>()) throw Failure(*nothing->message);
}

bool equal(const Value& left, const Value& right, Budget& budget) {
  budget.step();
  if (left.number() && right.number()) return order_of_numbers(left, right) == 0;
  if (left.data().index() != right.data().index()) return false;
  if (left.is_none() || left.is_undefined()) return true;
  if (left.text() != nullptr) {
    budget.step(left.text()->size() / 64);
    return *left.text() == *right.text();
  }
  if (left.list() != nullptr) return equal_lists(*left.list(), *right.list(), budget);
  if (left.dict() != nullptr) return equal_dicts(*left.dict(), *right.dict(), budget);
  throw Failure(fmt::format("two objects of type {} cannot be compared", type_name(left)));
}

bool less(const Value& left, const Value& right, Budget& budget) {
  budget.step();
  require_defined(left);
  require_defined(right);
  if (left.number() && right.number()) return order_of_numbers(left, right) == -1;
  if (left.text() != nullptr && right.text() != nullptr) {
    budget.step(left.text()->size() / 64);
    return *left.text() < *right.text();
  }
  const List* a = left.list();
  const List* b = right.list();
  if (a == nullptr || b == nullptr || a->kind != b->kind || is_view(*a) ||
      a->kind == List::Kind::kRange) {
    fail_order(left, right);
  }
  return less_lists(*a, *b, budget);
}

bool compare(CompareOp op, const Value& left, const Value& right, Budget& budget) {
  // With numbers that cannot be ordered (NaN), a <= b is not the same as not (b < a).
  auto at_most = [&](const Value& a, const Value& b) {
    return less(a, b, budget) || equal(a, b, budget);
  };
  switch (op) {
    case CompareOp::kEqual:
      return equal(left, right, budget);
    case CompareOp::kNotEqual:
      return !equal(left, right, budget);
    case CompareOp::kLess:
      return less(left, right, budget);
    case CompareOp::kLessEqual:
      return at_most(left, right);
    case CompareOp::kGreater:
      return less(right, left, budget);
    case CompareOp::kGreaterEqual:
      return at_most(right, left);
    case CompareOp::kIn:
      return contains(right, left, budget);
    case CompareOp::kNotIn:
      return !contains(right, left, budget);
  }
  return false;
}

Value item(const Value& object, const Value& key, Budget& budget) {
  require_defined(object);
  const List* list = object.list();
  const bool sequence = object.text() != nullptr || (list != nullptr && !is_view(*list));
  if (sequence && key.integer()) {
    if (auto element = element_at(object, *key.integer(), budget)) return std::move(*element);
  }
  if (const Dict* dict = object.dict()) {
    if (const Value* found = dict->find(key)) return *found;
  }
  if (key.text() != nullptr) return attribute(object, *key.text());
  const auto integer = key.integer();
  return undefined(fmt::format("'{} object' has no element {}", type_name(object),
                               integer ? fmt::format("{}", *integer) : "of this kind"));
}

Value attribute(const Value& object, const std::string& name) {
  require_defined(object);
  if (auto method = find_method(object, name)) return std::move(*method);
  if (const auto* loop = object.get_if<LoopPtr>()) return (*loop)->attribute(name);
  const Value* found = nullptr;
  if (const Dict* dict = object.dict()) found = dict->find_text(name);
  if (const auto* space = object.get_if<NamespacePtr>()) found = (*space)->find(name);
  return found != nullptr ? *found : undefined_attribute(object, name);
}

Value by_path(const Value& value, const Value& path, Budget& budget, const Value* fallback) {
  auto step = [&](const Value& object, const Value& key) {
    Value found = item(object, key, budget);
    if (found.is_undefined() && fallback != nullptr) return *fallback;
    return found;
  };
  if (path.text() == nullptr) return step(value, path);
  Value result = value;
  for (const std::string_view part : split(*path.text(), ".", -1, false)) {
    int64_t number = 0;
    const char* end = part.data() + part.size();
    const auto [stop, error] = std::from_chars(part.data(), end, number);
    const bool is_number = stop == end && error == std::errc() && !part.starts_with('-');
    result = step(result, is_number ? Value(number) : Value(std::string(part)));
  }
  return result;
}

Value slice(const Value& object, const Value& start, const Value& stop, const Value& step,
            Budget& budget) {
  require_defined(object);
  const List* list = object.list();
  if (list != nullptr && !is_view(*list)) {
    const SliceRange range =
        resolve_slice(start, stop, step, static_cast<int64_t>(list->items.size()));
    std::vector<Value> items;
    budget.step(static_cast<std::size_t>(range.count));
    for (int64_t i = 0; i < range.count; ++i) {
      items.push_back(list->items[static_cast<std::size_t>(range.start + i * range.step)]);
    }
    return make_list(std::move(items), budget, list->kind);
  }
  if (object.text() != nullptr) {
    const auto all = characters(*object.text(), budget);
    const SliceRange range = resolve_slice(start, stop, step, static_cast<int64_t>(all.size()));
    budget.produce(object.text()->size());
    std::string result;
    for (int64_t i = 0; i < range.count; ++i) {
      result += all[static_cast<std::size_t>(range.start + i * range.step)];
    }
    return result;
  }
  throw Failure(fmt::format("'{}' object cannot be sliced", type_name(object)));
}

int64_t length(const Value& value, Budget& budget) {
  if (value.is_undefined()) return 0;
  if (const std::string* text = value.text()) {
    budget.step(text->size() / 64);
    return static_cast<int64_t>(count_characters(*text));
  }
  if (const List* list = value.list()) return static_cast<int64_t>(list->items.size());
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->entries.size());
  throw Failure(fmt::format("object of type '{}' has no len()", type_name(value)));
}

std::optional<std::vector<Value>> try_elements(const Value& value, Budget& budget) {
  std::vector<Value> result;
  if (value.is_undefined()) return result;
  if (const std::string* text = value.text()) {
    const auto all = characters(*text, budget);
    budget.produce(all.size() * (sizeof(Value) + sizeof(std::string)));
    for (const std::string_view character : all) result.emplace_back(std::string(character));
    return result;
  }
  if (const List* list = value.list()) {
    budget.step(list->items.size() / 16);
    return list->items;
  }
  if (const Dict* dict = value.dict()) {
    budget.step(dict->entries.size() / 16);
    for (const auto& [key, unused] : dict->entries) result.push_back(key);
    return result;
  }
  if (const auto* iterator = value.get_if<IteratorPtr>()) {
    Iterator& source = **iterator;
    for (; source.next < source.items.size(); ++source.next) {
      result.push_back(source.items[source.next]);
    }
    return result;
  }
  return std::nullopt;
}

std::vector<Value> elements(const Value& value, Budget& budget) {
  auto result = try_elements(value, budget);
  if (!result) throw Failure(fmt::format("'{}' object is not iterable", type_name(value)));
  return std::move(*result);
}

}  // namespace levin::text::jinja
