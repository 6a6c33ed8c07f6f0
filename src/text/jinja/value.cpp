#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "text/jinja/format.h"
#include "text/jinja/overloaded.h"
#include "text/utf8.h"

namespace levin::text::jinja {
namespace {

// Depth of a value as an element. Only plain data may be one, so that no container can hold itself
// or a thing whose scope has ended.
int element_depth(const Value& value) {
  return std::visit(
      overloaded{[](const ListPtr& list) { return list->depth; },
                 [](const DictPtr& dict) { return dict->depth; },
                 [](const IteratorPtr&) -> int {
                   throw Failure("a generator cannot be an element; make it a list with |list");
                 },
                 [](const auto& other) {
                   using T = std::decay_t<decltype(other)>;
                   constexpr bool kPlain = std::is_same_v<T, Undefined> ||
                                           std::is_same_v<T, None> || std::is_same_v<T, bool> ||
                                           std::is_same_v<T, int64_t> ||
                                           std::is_same_v<T, double> || std::is_same_v<T, Text>;
                   if (!kPlain) {
                     throw Failure("a namespace, loop, macro or function cannot be an element");
                   }
                   return 0;
                 }},
      value.data());
}

int checked_depth(int deepest_element) {
  if (deepest_element >= kMaxValueDepth) throw Failure("lists and dicts are nested too deeply");
  return deepest_element + 1;
}

void check_utf8(const std::string& text) {
  if (find_invalid_utf8(text)) throw Failure("a string among the variables is not UTF-8");
}

// Heap bytes of one dict entry: two values, the key in the index, its node.
constexpr std::size_t kEntryBytes = 2 * sizeof(Value) + 80;

}  // namespace

std::optional<int64_t> Value::integer() const {
  if (const auto* value = get_if<int64_t>()) return *value;
  if (const auto* value = get_if<bool>()) return *value ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto* value = get_if<double>()) return *value;
  if (const auto value = integer()) return static_cast<double>(*value);
  return std::nullopt;
}

const Value* Dict::find(const Value& key) const {
  const auto hashed = hash_key(key);
  if (!hashed) return nullptr;
  const auto it = index.find(*hashed);
  return it == index.end() ? nullptr : &entries[it->second].second;
}

const Value* Dict::find_text(std::string_view key) const {
  const auto it = index.find(fmt::format("s{}", key));
  return it == index.end() ? nullptr : &entries[it->second].second;
}

void Dict::set(const Value& key, Value value) {
  auto hashed = hash_key(key);
  if (!hashed) throw Failure(fmt::format("unhashable type: '{}'", type_name(key)));
  const auto [it, fresh] = index.try_emplace(std::move(*hashed), entries.size());
  if (fresh) {
    entries.emplace_back(key, std::move(value));
  } else {
    entries[it->second].second = std::move(value);
  }
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& [key, value] : attributes) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Namespace::set(std::string_view name, Value value) {
  if (name.starts_with('_')) {
    throw Failure(fmt::format("a namespace cannot have the attribute '{}'", name));
  }
  if (!value.is<IteratorPtr>()) (void)element_depth(value);
  for (auto& [key, old] : attributes) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  attributes.emplace_back(name, std::move(value));
}

Value undefined(std::string message) {
  return Undefined{std::make_shared<const std::string>(std::move(message))};
}

Value undefined_attribute(const Value& object, const std::string& name) {
  if (object.is_none()) return undefined(fmt::format("'None' has no attribute '{}'", name));
  return undefined(fmt::format("'{} object' has no attribute '{}'", type_name(object), name));
}

Value make_list(std::vector<Value> items, Budget& budget, List::Kind kind) {
  budget.produce(items.size() * sizeof(Value));
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, element_depth(item));
  return std::make_shared<const List>(List{kind, checked_depth(deepest), std::move(items)});
}

Value make_dict(std::vector<std::pair<Value, Value>> entries, Budget& budget) {
  budget.produce(entries.size() * kEntryBytes);
  auto dict = std::make_shared<Dict>();
  int deepest = 0;
  for (auto& entry : entries) {
    deepest = std::max({deepest, element_depth(entry.first), element_depth(entry.second)});
    dict->set(entry.first, std::move(entry.second));
  }
  dict->depth = checked_depth(deepest);
  return DictPtr(std::move(dict));
}

Value make_iterator(std::vector<Value> items, Budget& budget) {
  budget.produce(items.size() * sizeof(Value));
  for (const Value& item : items) (void)element_depth(item);
  return std::make_shared<Iterator>(Iterator{std::move(items), 0});
}

Value from_json(const nlohmann::ordered_json& json, Budget& budget) {
  using Type = nlohmann::json::value_t;
  const Budget::Nesting nesting(budget);
  switch (json.type()) {
    case Type::null:
      return None{};
    case Type::boolean:
      return json.get<bool>();
    case Type::number_integer:
      return json.get<int64_t>();
    case Type::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        throw Failure(fmt::format("the number {} does not fit 64 bits", json.get<uint64_t>()));
      }
      return json.get<int64_t>();
    case Type::number_float:
      return json.get<double>();
    case Type::string: {
      const auto& text = json.get_ref<const std::string&>();
      budget.produce(text.size());
      check_utf8(text);
      return text;
    }
    case Type::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(item, budget));
      return make_list(std::move(items), budget);
    }
    case Type::object: {
      std::vector<std::pair<Value, Value>> entries;
      entries.reserve(json.size());
      for (const auto& [key, value] : json.items()) {
        check_utf8(key);
        entries.emplace_back(key, from_json(value, budget));
      }
      return make_dict(std::move(entries), budget);
    }
    default:
      throw Failure("a variable of the template is not a JSON value");
  }
}

std::string_view type_name(const Value& value) {
  return std::visit(
      [](const auto& data) -> std::string_view {
        using T = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<T, ListPtr>) return type_name(data->kind);
        if constexpr (std::is_same_v<T, Undefined>) return "Undefined";
        if constexpr (std::is_same_v<T, None>) return "NoneType";
        if constexpr (std::is_same_v<T, bool>) return "bool";
        if constexpr (std::is_same_v<T, int64_t>) return "int";
        if constexpr (std::is_same_v<T, double>) return "float";
        if constexpr (std::is_same_v<T, Text>) return "str";
        if constexpr (std::is_same_v<T, DictPtr>) return "dict";
        if constexpr (std::is_same_v<T, IteratorPtr>) return "generator";
        if constexpr (std::is_same_v<T, NamespacePtr>) return "Namespace";
        if constexpr (std::is_same_v<T, LoopPtr>) return "LoopContext";
        if constexpr (std::is_same_v<T, MacroValue>) return "Macro";
        return "builtin_function_or_method";
      },
      value.data());
}

std::string_view type_name(List::Kind kind) {
  switch (kind) {
    case List::Kind::kList:
      return "list";
    case List::Kind::kTuple:
      return "tuple";
    case List::Kind::kRange:
      return "range";
    case List::Kind::kKeys:
      return "dict_keys";
    case List::Kind::kValues:
      return "dict_values";
    case List::Kind::kItems:
      return "dict_items";
  }
  return {};
}

bool truthy(const Value& value) {
  return std::visit(
      overloaded{[](const Undefined&) { return false; }, [](const None&) { return false; },
                 [](bool b) { return b; }, [](int64_t i) { return i != 0; },
                 [](double d) { return d != 0; }, [](const Text& text) { return !text->empty(); },
                 [](const ListPtr& list) { return !list->items.empty(); },
                 [](const DictPtr& dict) { return !dict->entries.empty(); },
                 [](const auto&) { return true; }},
      value.data());
}

std::optional<std::string> hash_key(const Value& value) {
  if (const std::string* text = value.text()) return fmt::format("s{}", *text);
  if (value.is_none()) return "n";
  if (value.is_undefined()) return "u";
  if (const auto integer = value.integer()) return fmt::format("i{}", *integer);
  if (const auto* number = value.get_if<double>()) {
    const bool whole = *number == std::floor(*number) && std::abs(*number) < 0x1p63;
    return whole ? fmt::format("i{}", static_cast<int64_t>(*number))
                 : fmt::format("f{}", python_float(*number));
  }
  const List* list = value.list();
  if (list == nullptr || list->kind != List::Kind::kTuple) return std::nullopt;
  std::string key = fmt::format("t{}", list->items.size());
  for (const Value& item : list->items) {
    const auto part = hash_key(item);
    if (!part) return std::nullopt;
    key += fmt::format(":{}:{}", part->size(), *part);
  }
  return key;
}

}  // namespace levin::text::jinja
