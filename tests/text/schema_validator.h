// Judges documents by JSON schema, independently of the grammar compiler: straight from the
// definition of each keyword. Only what the tests use.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "text/utf8.h"

namespace levin::text {

class SchemaValidator {
 public:
  using Json = nlohmann::ordered_json;
  explicit SchemaValidator(const Json& root) : root_(root) {}

  bool holds(const Json& document) const { return holds(root_, document); }

 private:
  bool holds(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (const auto ref = schema.find("$ref"); ref != schema.end()) {
      const std::string target = ref->get<std::string>().substr(1);
      return holds(root_.at(Json::json_pointer(target)), value);
    }
    return type_holds(schema, value) && listed(schema, value) && branches_hold(schema, value) &&
           (!value.is_object() || object_holds(schema, value)) &&
           (!value.is_array() || array_holds(schema, value)) &&
           (!value.is_string() || string_holds(schema, value.get<std::string>())) &&
           (!value.is_number() || number_holds(schema, value.get<double>()));
  }

  static bool is_a(const Json& value, const std::string& type) {
    if (type == "integer") {
      return value.is_number() && value.get<double>() == std::floor(value.get<double>());
    }
    if (type == "number") return value.is_number();
    return value.type_name() == type;
  }

  static bool type_holds(const Json& schema, const Json& value) {
    const auto type = schema.find("type");
    if (type == schema.end()) return true;
    if (type->is_string()) return is_a(value, *type);
    return std::ranges::any_of(*type, [&](const Json& name) { return is_a(value, name); });
  }

  static bool listed(const Json& schema, const Json& value) {
    if (schema.contains("const") && schema["const"] != value) return false;
    return !schema.contains("enum") ||
           std::ranges::find(schema["enum"], value) != schema["enum"].end();
  }

  bool branches_hold(const Json& schema, const Json& value) const {
    const auto count = [&](const char* key) {
      return std::ranges::count_if(schema[key],
                                   [&](const Json& branch) { return holds(branch, value); });
    };
    return (!schema.contains("anyOf") || count("anyOf") > 0) &&
           (!schema.contains("oneOf") || count("oneOf") == 1) &&
           (!schema.contains("allOf") ||
            count("allOf") == static_cast<std::ptrdiff_t>(schema["allOf"].size()));
  }

  bool object_holds(const Json& schema, const Json& value) const {
    const Json properties = schema.value("properties", Json::object());
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    for (const auto& [key, member] : value.items()) {
      if (properties.contains(key)) {
        if (!holds(properties[key], member)) return false;
      } else if (schema.contains("additionalProperties")) {
        if (!holds(schema["additionalProperties"], member)) return false;
      }
    }
    return true;
  }

  bool array_holds(const Json& schema, const Json& value) const {
    if (value.size() < schema.value("minItems", std::size_t{0})) return false;
    if (value.size() > schema.value("maxItems", SIZE_MAX)) return false;
    return !schema.contains("items") || std::ranges::all_of(value, [&](const Json& item) {
      return holds(schema["items"], item);
    });
  }

  static bool string_holds(const Json& schema, const std::string& value) {
    const std::size_t length = count_characters(value);
    if (length < schema.value("minLength", std::size_t{0})) return false;
    if (length > schema.value("maxLength", SIZE_MAX)) return false;
    if (!schema.contains("pattern")) return true;
    const std::wregex pattern(wide(schema["pattern"].get<std::string>()), std::regex::ECMAScript);
    return std::regex_search(wide(value), pattern);
  }

  static std::wstring wide(const std::string& text) {
    std::wstring out;
    for_each_character(text, [&](char32_t c, std::string_view) { out += static_cast<wchar_t>(c); });
    return out;
  }

  static bool number_holds(const Json& schema, double value) {
    const auto bound = [&](const char* key, auto&& holds_for) {
      return !schema.contains(key) || holds_for(schema[key].get<double>());
    };
    return bound("minimum", [&](double b) { return value >= b; }) &&
           bound("maximum", [&](double b) { return value <= b; }) &&
           bound("exclusiveMinimum", [&](double b) { return value > b; }) &&
           bound("exclusiveMaximum", [&](double b) { return value < b; });
  }

  const Json& root_;
};

}  // namespace levin::text
