// Typed, bounds-checked access to the keys of a configuration, with older spellings.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::model {

class Fields {
 public:
  // `object` must outlive this. `where` names its file in errors.
  Fields(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  // The value of the spellings `keys` that are present and not null; nullptr when none is. Throws
  // Error when two of them contradict each other: programs differ in which one they take.
  const nlohmann::json* find(std::initializer_list<const char*> keys) const;

  // Integers in [low, high]; `keys` are spellings of one thing.
  int64_t require_int(std::initializer_list<const char*> keys, int64_t low, int64_t high) const;
  int64_t get_int(std::initializer_list<const char*> keys, int64_t low, int64_t high,
                  int64_t otherwise) const;
  bool get_bool(std::initializer_list<const char*> keys, bool otherwise) const;
  double get_number(std::initializer_list<const char*> keys, double otherwise) const;
  std::string get_string(std::initializer_list<const char*> keys, std::string otherwise) const;

  // Throws Error about `key` (any text that names the place).
  [[noreturn]] void fail(const std::string& what, std::string_view key, const std::string& expected,
                         const std::string& found, const std::string& hint = {}) const;

 private:
  const nlohmann::json& object_;
  std::string where_;
};

// A JSON number, or infinity and NaN as {"__float__": "Infinity"}; nothing for anything else.
std::optional<double> as_number(const nlohmann::json& value);

// A JSON value as it may appear in an error message.
std::string shown(const nlohmann::json& value);

}  // namespace levin::model
