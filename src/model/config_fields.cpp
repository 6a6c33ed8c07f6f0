#include "model/config_fields.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/names.h"
#include "core/error.h"

namespace levin::model {
namespace {

// "conv_kernel" or, where there are several spellings, "mamba_d_conv or conv_kernel".
std::string list(std::initializer_list<const char*> keys) {
  std::string text;
  for (const char* key : keys) text += (text.empty() ? "" : " or ") + std::string(key);
  return text;
}

// The value when it is an integer in [low, high].
std::optional<int64_t> integer_between(const nlohmann::json& value, int64_t low, int64_t high) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(high)) {
    return std::nullopt;
  }
  const auto number = value.get<int64_t>();
  return low <= number && number <= high ? std::optional(number) : std::nullopt;
}

}  // namespace

std::string shown(const nlohmann::json& value) {
  using Handler = nlohmann::json::error_handler_t;
  if (value.is_structured() && value.size() > 64) {
    return fmt::format("{} of {} elements", value.type_name(), value.size());
  }
  return checkpoint::printable(value.dump(-1, ' ', false, Handler::replace));
}

std::optional<double> as_number(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_object() || value.size() != 1 || !value.contains("__float__")) return std::nullopt;
  const nlohmann::json& text = value["__float__"];
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

const nlohmann::json* Fields::find(std::initializer_list<const char*> keys) const {
  const nlohmann::json* first = nullptr;
  const char* first_key = nullptr;
  for (const char* key : keys) {
    const auto place = object_.find(key);
    if (place == object_.end() || place->is_null()) continue;
    if (first == nullptr) {
      first = &*place;
      first_key = key;
    } else if (*place != *first) {
      fail("two spellings of one configuration value contradict each other",
           fmt::format("{} and {}", first_key, key), "the same value, or one of them",
           fmt::format("{}: {}, {}: {}", first_key, shown(*first), key, shown(*place)),
           "take out the one that is wrong");
    }
  }
  return first;
}

int64_t Fields::require_int(std::initializer_list<const char*> keys, int64_t low,
                            int64_t high) const {
  if (find(keys) == nullptr) {
    fail("configuration lacks a key that shapes depend on", list(keys), "an integer", "nothing");
  }
  return get_int(keys, low, high, low);
}

int64_t Fields::get_int(std::initializer_list<const char*> keys, int64_t low, int64_t high,
                        int64_t otherwise) const {
  const nlohmann::json* value = find(keys);
  if (value == nullptr) return otherwise;
  const std::optional<int64_t> number = integer_between(*value, low, high);
  if (!number) {
    fail("configuration value is out of range", list(keys),
         fmt::format("an integer from {} to {}", low, high), shown(*value));
  }
  return *number;
}

bool Fields::get_bool(std::initializer_list<const char*> keys, bool otherwise) const {
  const nlohmann::json* value = find(keys);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    fail("configuration value has the wrong type", list(keys), "true or false", shown(*value));
  }
  return value->get<bool>();
}

double Fields::get_number(std::initializer_list<const char*> keys, double otherwise) const {
  const nlohmann::json* value = find(keys);
  if (value == nullptr) return otherwise;
  const std::optional<double> number = as_number(*value);
  if (!number) {
    fail("configuration value has the wrong type", list(keys), "a number", shown(*value));
  }
  return *number;
}

std::string Fields::get_string(std::initializer_list<const char*> keys,
                               std::string otherwise) const {
  const nlohmann::json* value = find(keys);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) {
    fail("configuration value has the wrong type", list(keys), "a string", shown(*value));
  }
  return value->get<std::string>();
}

void Fields::fail(const std::string& what, std::string_view key, const std::string& expected,
                  const std::string& found, const std::string& hint) const {
  throw Error({.what = what,
               .where = fmt::format("{}, {}", where_, key),
               .expected = expected,
               .found = found,
               .hint = hint});
}

}  // namespace levin::model
