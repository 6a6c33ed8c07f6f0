// What both quantization dialects read alike.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "checkpoint/names.h"
#include "checkpoint/quant_source.h"
#include "core/error.h"

namespace levin::checkpoint::quant_json {

using nlohmann::json;

void fail(const std::string& what, const std::string& where, const std::string& expected,
          const std::string& found, const std::string& hint) {
  throw Error({.what = what, .where = where, .expected = expected, .found = found, .hint = hint});
}

std::string shown(const json& value) {
  if (value.is_structured() && value.size() > 64) {
    return fmt::format("{} of {} elements", value.type_name(), value.size());
  }
  return printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

const json* find(const json& object, const char* key) {
  const auto place = object.find(key);
  return place == object.end() || place->is_null() ? nullptr : &*place;
}

const json& require_object(const json& value, const std::string& where) {
  if (!value.is_object()) fail("value has the wrong type", where, "an object", shown(value));
  return value;
}

std::string get_string(const json& object, const char* key, const std::string& where) {
  const json* value = find(object, key);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    fail("value has the wrong type", fmt::format("{}, {}", where, key), "a string", shown(*value));
  }
  return value->get<std::string>();
}

int get_int(const json& object, const char* key, int otherwise, const std::string& where) {
  constexpr int kMax = 1 << 20;
  const json* value = find(object, key);
  if (value == nullptr) return otherwise;
  // Through double: exact in the accepted range, and no integer is too large for it.
  const double number = value->is_number_integer() ? value->get<double>() : 0;
  if (number < 1 || number > kMax) {
    fail("value is out of range", fmt::format("{}, {}", where, key),
         fmt::format("an integer from 1 to {}", kMax), shown(*value));
  }
  return static_cast<int>(number);
}

std::vector<std::string> get_strings(const json& value, const std::string& where) {
  std::vector<std::string> strings;
  if (!value.is_array()) fail("value has the wrong type", where, "an array", shown(value));
  for (const json& element : value) {
    if (!element.is_string()) fail("value has the wrong type", where, "strings", shown(element));
    strings.push_back(element.get<std::string>());
  }
  return strings;
}

std::string producer_of(const json& object, const std::string& where) {
  const json* producer = find(object, "producer");
  if (producer == nullptr || !producer->is_object()) return {};
  const std::string name = get_string(*producer, "name", where + ", producer");
  const std::string version = get_string(*producer, "version", where + ", producer");
  return version.empty() ? name : name + " " + version;
}

void check_claim(const ModuleQuant* before, const ModuleQuant& now, const std::string& target,
                 const std::string& where) {
  if (before == nullptr || *before == now) return;
  fail("two config groups claim the same modules", where,
       fmt::format("one format for \"{}\"", printable(target)),
       fmt::format("{} and {}", told_as(*before), told_as(now)));
}

KvCacheQuant parse_kv_cache(const json& value, const std::string& where) {
  if (value.is_null()) return KvCacheQuant::kNone;
  if (value == "FP8") return KvCacheQuant::kFp8;
  if (value.is_object() && value.value("type", json()) == "float" &&
      value.value("num_bits", json()) == 8 && value.value("dynamic", json(false)) == false) {
    return KvCacheQuant::kFp8;
  }
  fail("unsupported KV cache quantization", where,
       R"(null, "FP8" or {"type": "float", "num_bits": 8, "dynamic": false})", shown(value));
}

}  // namespace levin::checkpoint::quant_json
