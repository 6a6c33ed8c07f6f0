#include "text/grammar/schema_overlap.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/grammar/json_schema.h"

namespace levin::text::grammar {
namespace {

using Json = nlohmann::ordered_json;
using Resolve = std::function<const Json&(const Json&)>;

constexpr int kMaxReferences = 32;
constexpr int kMaxDepth = 4;

const Json& follow(const Json& schema, const Resolve& resolve) {
  const Json* at = &schema;
  for (int i = 0; i < kMaxReferences && at->is_object() && at->contains("$ref"); ++i) {
    at = &resolve(at->at("$ref"));
  }
  return *at;
}

// The values a schema lists; nothing when it does not list them.
std::vector<Json> constants(const Json& schema) {
  if (schema.contains("const")) return {schema.at("const")};
  if (schema.contains("enum") && schema.at("enum").is_array()) {
    return schema.at("enum").get<std::vector<Json>>();
  }
  return {};
}

bool is_type_name_or_list(const Json& schema) {
  const auto type = schema.find("type");
  if (type == schema.end() || type->is_string()) return true;
  return type->is_array() &&
         std::ranges::all_of(*type, [](const Json& name) { return name.is_string(); });
}

bool types_differ(const Json& a, const Json& b) {
  if (!is_type_name_or_list(a) || !is_type_name_or_list(b)) return false;
  const auto a_types = schema_types(a);
  const auto b_types = schema_types(b);
  if (a_types.empty() || b_types.empty()) return false;
  const auto numeric = [](const std::string& type) {
    return type == "integer" || type == "number";
  };
  return std::ranges::none_of(a_types, [&](const std::string& x) {
    return std::ranges::any_of(
        b_types, [&](const std::string& y) { return x == y || (numeric(x) && numeric(y)); });
  });
}

bool requires_key(const Json& schema, const std::string& key) {
  const auto required = schema.find("required");
  return required != schema.end() && required->is_array() &&
         std::ranges::find(*required, Json(key)) != required->end();
}

bool differ(const Json& a_schema, const Json& b_schema, const Resolve& resolve, int depth) {
  const Json& a = follow(a_schema, resolve);
  const Json& b = follow(b_schema, resolve);
  if (!a.is_object() || !b.is_object() || depth > kMaxDepth) return false;
  const std::vector<Json> a_values = constants(a);
  const std::vector<Json> b_values = constants(b);
  if (!a_values.empty() && !b_values.empty()) {
    if (a_values.size() * b_values.size() > 1000000) return false;
    return std::ranges::none_of(a_values, [&](const Json& value) {
      return std::ranges::find(b_values, value) != b_values.end();
    });
  }
  if (types_differ(a, b)) return true;
  const auto a_properties = a.find("properties");
  const auto b_properties = b.find("properties");
  if (a_properties == a.end() || b_properties == b.end()) return false;
  if (!a_properties->is_object() || !b_properties->is_object()) return false;
  // Both must be objects, not merely allow them.
  if (schema_types(a) != std::vector<std::string>{"object"}) return false;
  for (const auto& [key, value] : a_properties->items()) {
    const auto other = b_properties->find(key);
    if (other == b_properties->end()) continue;
    if (requires_key(a, key) && requires_key(b, key) && differ(value, *other, resolve, depth + 1)) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool cannot_overlap(const Json& a, const Json& b, const Resolve& resolve) {
  return differ(a, b, resolve, 0);
}

}  // namespace levin::text::grammar
