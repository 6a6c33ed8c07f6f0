// Values of the template language: those of Python that a template can meet.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/budget.h"

namespace levin::text::jinja {

class Value;
class Loop;
struct Builtin;
struct MacroStatement;
struct Scope;

struct None {};

// The result of looking up what is not there. It renders as nothing and is false; most uses of it
// fail with `message`.
struct Undefined {
  std::shared_ptr<const std::string> message;
};

using Text = std::shared_ptr<const std::string>;  // valid UTF-8, never null

// Everything that Python keeps in order and that cannot change here.
struct List {
  enum class Kind : uint8_t { kList, kTuple, kRange, kKeys, kValues, kItems };
  Kind kind = Kind::kList;
  int depth = 1;  // 1 + the deepest element
  std::vector<Value> items;
};

// Keeps insertion order. Keys are hashable values; 1, 1.0 and true are the same key, as in Python.
struct Dict {
  int depth = 1;
  std::vector<std::pair<Value, Value>> entries;
  std::unordered_map<std::string, std::size_t> index;  // hash_key(key) -> position

  const Value* find(const Value& key) const;
  const Value* find_text(std::string_view key) const;
  // Replaces the value of a key that is there. Fails on a key that cannot be hashed.
  void set(const Value& key, Value value);
};

// A generator: what map, select and their like return. Consumed by reading it.
struct Iterator {
  std::vector<Value> items;
  std::size_t next = 0;
};

// namespace(): the one thing a template can change after it was made.
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;

  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

// A built-in function, or a method together with the value it was looked up on.
struct BoundFunction {
  const Builtin* function;
  std::unique_ptr<const Value> self;  // null for a function
};

// A macro and the scope it was defined in; the interpreter keeps both alive.
struct MacroValue {
  const MacroStatement* macro;
  Scope* scope;
};

using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using IteratorPtr = std::shared_ptr<Iterator>;
using NamespacePtr = std::shared_ptr<Namespace>;
using LoopPtr = std::shared_ptr<Loop>;
using FunctionPtr = std::shared_ptr<const BoundFunction>;

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, double, Text, ListPtr, DictPtr,
                            IteratorPtr, NamespacePtr, LoopPtr, FunctionPtr, MacroValue>;

  Value() : data_(None{}) {}
  Value(None none) : data_(none) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string text) : data_(std::make_shared<const std::string>(std::move(text))) {}
  Value(Text text) : data_(std::move(text)) {}
  Value(ListPtr list) : data_(std::move(list)) {}
  Value(DictPtr dict) : data_(std::move(dict)) {}
  Value(IteratorPtr iterator) : data_(std::move(iterator)) {}
  Value(NamespacePtr object) : data_(std::move(object)) {}
  Value(LoopPtr loop) : data_(std::move(loop)) {}
  Value(FunctionPtr function) : data_(std::move(function)) {}
  Value(MacroValue macro) : data_(macro) {}
  // A pointer is not a bool, and a literal string not one either.
  Value(const void*) = delete;
  Value(const char* text) : Value(std::string(text)) {}

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  const std::string* text() const {
    const Text* text = get_if<Text>();
    return text == nullptr ? nullptr : text->get();
  }
  const List* list() const {
    const ListPtr* list = get_if<ListPtr>();
    return list == nullptr ? nullptr : list->get();
  }
  const Dict* dict() const {
    const DictPtr* dict = get_if<DictPtr>();
    return dict == nullptr ? nullptr : dict->get();
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  // The value of an int, and of a bool as Python counts with it.
  std::optional<int64_t> integer() const;
  // The same and floats.
  std::optional<double> number() const;

  const Data& data() const { return data_; }

 private:
  Data data_;
};

Value undefined(std::string message);
// What Python raises for `object.name` and object["name"], as an undefined value.
Value undefined_attribute(const Value& object, const std::string& name);

// Both refuse values nested deeper than kMaxValueDepth and the holding of what can change.
Value make_list(std::vector<Value> items, Budget& budget, List::Kind kind = List::Kind::kList);
Value make_dict(std::vector<std::pair<Value, Value>> entries, Budget& budget);
Value make_iterator(std::vector<Value> items, Budget& budget);

Value from_json(const nlohmann::ordered_json& json, Budget& budget);

// Python's name of the type: "str", "dict", "NoneType".
std::string_view type_name(const Value& value);
std::string_view type_name(List::Kind kind);
bool truthy(const Value& value);

// Equal for equal keys only; nothing for a value that cannot be a key.
std::optional<std::string> hash_key(const Value& value);

}  // namespace levin::text::jinja
