#include "text/grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "text/grammar/decimal_range.h"
#include "text/grammar/regex.h"
#include "text/grammar/schema_overlap.h"
#include "text/grammar/string_formats.h"

namespace levin::text::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 15> kIgnored = {
    "title",      "description", "default",   "examples",         "example",
    "deprecated", "readOnly",    "writeOnly", "$schema",          "$id",
    "$comment",   "$anchor",     "strict",    "contentMediaType", "contentEncoding"};
constexpr std::array<std::string_view, 2> kDefinitions = {"$defs", "definitions"};
// These say all by themselves.
constexpr std::array<std::string_view, 6> kWhole = {"enum",  "const", "anyOf",
                                                    "oneOf", "allOf", "$ref"};

struct Keyword {
  std::string_view name;
  std::string_view type;
};
constexpr std::array<Keyword, 14> kTyped = {{{"properties", "object"},
                                             {"required", "object"},
                                             {"additionalProperties", "object"},
                                             {"items", "array"},
                                             {"minItems", "array"},
                                             {"maxItems", "array"},
                                             {"minLength", "string"},
                                             {"maxLength", "string"},
                                             {"pattern", "string"},
                                             {"format", "string"},
                                             {"minimum", "number"},
                                             {"maximum", "number"},
                                             {"exclusiveMinimum", "number"},
                                             {"exclusiveMaximum", "number"}}};

bool is_one_of(std::string_view name, auto&& names) {
  return std::ranges::find(names, name) != names.end();
}

bool is_of_type(const Json& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "integer") return value.is_number_integer();
  return type == "number" && value.is_number();
}

std::string escaped(const std::string& key) {
  std::string out;
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> schema_types(const Json& schema) {
  std::vector<std::string> types;
  const auto type = schema.find("type");
  if (type != schema.end()) {
    if (type->is_string()) return {type->get<std::string>()};
    for (const Json& name : *type) {
      if (name.is_string()) types.push_back(name.get<std::string>());
    }
    return types;
  }
  for (const Keyword& keyword : kTyped) {
    if (schema.contains(keyword.name) && !is_one_of(keyword.type, types)) {
      types.emplace_back(keyword.type);
    }
  }
  return types;
}

JsonSchemaCompiler::JsonSchemaCompiler(JsonRules& rules, const Json& root, std::string where)
    : rules_(rules), builder_(rules.builder()), root_(root), where_(std::move(where)) {}

void JsonSchemaCompiler::refuse(const std::string& pointer, const std::string& keyword,
                                const std::string& why) const {
  throw Error({.what = "JSON schema asks for what constrained decoding does not support",
               .where = where_ + (pointer.empty() ? "#" : "#" + pointer),
               .expected = {},
               .found = why.empty() ? keyword : fmt::format("{}: {}", keyword, why),
               .hint = {}});
}

void JsonSchemaCompiler::check_keywords(const Json& schema, const std::string& pointer) const {
  std::string whole;
  std::string typed;
  for (const auto& [name, value] : schema.items()) {
    if (is_one_of(name, kWhole)) {
      if (!whole.empty()) refuse(pointer, name, "beside " + whole);
      whole = name;
    } else if (name == "type") {
      if (typed.empty()) typed = name;
    } else if (std::ranges::find(kTyped, name, &Keyword::name) != kTyped.end()) {
      typed = name;
    } else if (!is_one_of(name, kIgnored) && !is_one_of(name, kDefinitions)) {
      refuse(pointer, fmt::format("keyword \"{}\"", name.substr(0, 100)));
    }
  }
  if (const auto type = schema.find("type"); type != schema.end()) {
    const bool names = type->is_array() && !type->empty() &&
                       std::ranges::all_of(*type, [](const Json& t) { return t.is_string(); });
    if (!type->is_string() && !names) refuse(pointer + "/type", "type", "not a name or names");
  }
  if (whole.empty() || typed.empty()) return;
  if (typed == "type" && (whole == "enum" || whole == "const")) return;
  refuse(pointer, typed, "beside " + whole);
}

State JsonSchemaCompiler::compile(const Json& schema, const std::string& pointer, State from) {
  if (++nesting_ > kMaxSchemaNesting) {
    refuse(pointer, fmt::format("more than {} nested schemas", kMaxSchemaNesting));
  }
  builder_.set_place(where_ + "#" + pointer);
  const State to = compile_inside(schema, pointer, from);
  --nesting_;
  return to;
}

State JsonSchemaCompiler::compile_inside(const Json& schema, const std::string& pointer,
                                         State from) {
  if (schema.is_boolean()) return schema.get<bool>() ? rules_.value(from) : builder_.add_state();
  if (!schema.is_object())
    refuse(pointer, schema.type_name(), "a schema is an object or a boolean");
  check_keywords(schema, pointer);
  if (schema.contains("enum") || schema.contains("const")) {
    return compile_enum(schema, pointer, from);
  }
  if (const auto ref = schema.find("$ref"); ref != schema.end()) {
    return compile_ref(*ref, pointer + "/$ref", from);
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const auto branches = schema.find(key);
    if (branches == schema.end()) continue;
    const std::string inside = fmt::format("{}/{}", pointer, key);
    if (!branches->is_array() || branches->empty()) refuse(inside, key, "not a list of schemas");
    if (key == std::string_view("allOf") && branches->size() > 1) {
      refuse(inside, key, "more than one branch");
    }
    if (key == std::string_view("oneOf")) check_disjoint(*branches, inside);
    return compile_branches(*branches, inside, from);
  }
  const std::vector<std::string> types = schema_types(schema);
  if (types.empty()) return rules_.value(from);
  const State end = builder_.add_state();
  for (const std::string& type : types) {
    builder_.jump(compile_type(schema, type, pointer, from), end);
  }
  return end;
}

State JsonSchemaCompiler::compile_type(const Json& schema, const std::string& type,
                                       const std::string& pointer, State from) {
  if (type == "object") return compile_object(schema, pointer, from);
  if (type == "array") return compile_array(schema, pointer, from);
  if (type == "string") return compile_string(schema, pointer, from);
  if (type == "integer") return compile_number(schema, pointer, true, from);
  if (type == "number") return compile_number(schema, pointer, false, from);
  if (type == "boolean") return rules_.one_of(from, {"true", "false"});
  if (type == "null") return builder_.literal(from, "null");
  refuse(pointer + "/type", "type", fmt::format("\"{}\"", type.substr(0, 100)));
}

State JsonSchemaCompiler::compile_enum(const Json& schema, const std::string& pointer, State from) {
  std::vector<std::string> texts;
  const std::vector<std::string> types = schema_types(schema);
  const auto add = [&](const Json& value) {
    const bool fits = types.empty() || std::ranges::any_of(types, [&](const std::string& type) {
                        return is_of_type(value, type);
                      });
    if (fits) texts.push_back(spelled(value.dump(), pointer));
  };
  if (const auto value = schema.find("const"); value != schema.end()) {
    add(*value);
  } else {
    const Json& values = schema["enum"];
    if (!values.is_array()) refuse(pointer + "/enum", "enum", "not a list");
    if (values.size() > kMaxEnumValues) {
      refuse(pointer + "/enum", "enum", fmt::format("more than {} values", kMaxEnumValues));
    }
    std::ranges::for_each(values, add);
  }
  if (texts.empty()) return builder_.add_state();
  return rules_.one_of(from, std::move(texts));
}

const std::string& JsonSchemaCompiler::spelled(const std::string& text,
                                               const std::string& pointer) const {
  if (rules_.spelling() == Spelling::kJsonInTags && text.find('<') != std::string::npos) {
    refuse(pointer, text.substr(0, 100), "a '<' in a tool call");
  }
  return text;
}

State JsonSchemaCompiler::compile_branches(const Json& branches, const std::string& pointer,
                                           State from) {
  if (branches.size() > kMaxBranches) {
    refuse(pointer, fmt::format("more than {} branches", kMaxBranches));
  }
  const State end = builder_.add_state();
  for (std::size_t i = 0; i < branches.size(); ++i) {
    builder_.jump(compile(branches[i], fmt::format("{}/{}", pointer, i), from), end);
  }
  return end;
}

const Json& JsonSchemaCompiler::resolve(const Json& ref, const std::string& pointer) const {
  if (!ref.is_string()) refuse(pointer, "$ref", "not a string");
  const std::string& target = ref.get_ref<const std::string&>();
  const std::string shown = fmt::format("\"{}\"", target.substr(0, 100));
  if (target != "#" && !target.starts_with("#/")) refuse(pointer, "$ref", shown + " is not local");
  try {
    const Json::json_pointer path(target.substr(1));
    if (root_.contains(path)) return root_.at(path);
  } catch (const Json::exception&) {
    refuse(pointer, "$ref", shown + " is not a JSON pointer");
  }
  refuse(pointer, "$ref", shown + " does not exist");
}

State JsonSchemaCompiler::compile_ref(const Json& ref, const std::string& pointer, State from) {
  const Json& schema = resolve(ref, pointer);
  const std::string target = ref.get<std::string>().substr(1);
  auto found = refs_.find(target);
  if (found == refs_.end()) {
    const Rule rule = builder_.add_rule(where_ + "#" + target);
    found = refs_.emplace(target, rule).first;
    builder_.jump(compile(schema, target, rule.start), rule.end);
  }
  return builder_.after_call(from, found->second);
}

State JsonSchemaCompiler::key_and_value(const std::string& key, const Json& value,
                                        const std::string& pointer, State from) {
  State state = builder_.literal(from, spelled(Json(key).dump(), pointer));
  state = rules_.white_space(builder_.literal(rules_.white_space(state), ":"));
  return rules_.white_space(compile(value, pointer, state));
}

State JsonSchemaCompiler::compile_object(const Json& schema, const std::string& pointer,
                                         State from) {
  static const Json kAny = true;
  const auto given = schema.find("properties");
  if (given != schema.end() && !given->is_object()) {
    refuse(pointer + "/properties", "properties", "not an object");
  }
  std::vector<std::pair<std::string, const Json*>> properties;
  if (given != schema.end()) {
    for (const auto& [key, value] : given->items()) properties.emplace_back(key, &value);
  }
  // Whether there may be others, and what they are.
  const auto more = schema.find("additionalProperties");
  const Json* other = given == schema.end() ? &kAny : nullptr;
  if (more != schema.end()) other = *more == false ? nullptr : &*more;

  std::set<std::string> required;
  if (const auto names = schema.find("required"); names != schema.end()) {
    if (!names->is_array()) refuse(pointer + "/required", "required", "not a list");
    for (const Json& name : *names) {
      if (!name.is_string()) refuse(pointer + "/required", "required", "not a list of names");
      const auto& key = name.get_ref<const std::string&>();
      const bool known = std::ranges::any_of(
          properties, [&](const auto& property) { return property.first == key; });
      if (required.insert(key).second && !known) {
        static const Json kNothing = false;
        properties.emplace_back(key, other != nullptr       ? other
                                     : more == schema.end() ? &kAny
                                                            : &kNothing);
      }
    }
  }
  if (properties.size() > kMaxProperties) {
    refuse(pointer, "properties", fmt::format("more than {}", kMaxProperties));
  }

  // key[i]: a key of property i or a later one must come. behind[i]: the value of property i - 1 or
  // an earlier one has come, and i or a later one may.
  const std::size_t count = properties.size();
  std::vector<State> key;
  std::vector<State> behind;
  for (std::size_t i = 0; i <= count; ++i) {
    key.push_back(builder_.add_state());
    behind.push_back(builder_.add_state());
  }
  const State end = builder_.add_state();
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [name, value] = properties[i];
    names.push_back(name);
    const std::string inside = fmt::format("{}/properties/{}", pointer, escaped(name));
    builder_.jump(key_and_value(name, *value, inside, key[i]), behind[i + 1]);
    if (!required.contains(name)) builder_.jump(key[i], key[i + 1]);
  }
  if (other != nullptr) {
    State state = rules_.white_space(rules_.other_key(key[count], names));
    state = rules_.white_space(builder_.literal(state, ":"));
    state = compile(*other, pointer + "/additionalProperties", state);
    builder_.jump(rules_.white_space(state), behind[count]);
  }
  // The first property from which on none is required.
  std::size_t optional = count;
  while (optional > 0 && !required.contains(properties[optional - 1].first)) --optional;
  for (std::size_t i = 1; i <= count; ++i) {
    builder_.jump(rules_.white_space(builder_.literal(behind[i], ",")), key[i]);
    if (i >= optional) builder_.consume(behind[i], '}', '}', end);
  }
  if (count == 0) {
    builder_.jump(rules_.white_space(builder_.literal(behind[0], ",")), key[0]);
    builder_.consume(behind[0], '}', '}', end);
  }
  const State open = rules_.white_space(builder_.literal(from, "{"));
  builder_.jump(open, key[0]);
  if (optional == 0) builder_.consume(open, '}', '}', end);
  return end;
}

State JsonSchemaCompiler::compile_array(const Json& schema, const std::string& pointer,
                                        State from) {
  const auto items = schema.find("items");
  const Lengths lengths = lengths_of(schema, pointer, "minItems", "maxItems");
  const Rule item = builder_.add_rule(where_ + "#" + pointer + "/items");
  builder_.jump(items == schema.end() ? rules_.value(item.start)
                                      : compile(*items, pointer + "/items", item.start),
                item.end);
  const State end = builder_.add_state();
  const State open = rules_.white_space(builder_.literal(from, "["));
  if (lengths.least == 0) builder_.consume(open, ']', ']', end);
  if (lengths.most == 0) return end;
  State next = builder_.add_state();  // where an item begins
  builder_.jump(open, next);
  const bool limited = lengths.most != kUnlimited;
  const int32_t steps = limited ? lengths.most : std::max(lengths.least, 1);
  for (int32_t count = 1;; ++count) {
    const State behind = rules_.white_space(builder_.after_call(next, item));
    if (count >= lengths.least) builder_.consume(behind, ']', ']', end);
    if (count == steps && limited) return end;
    const State comma = rules_.white_space(builder_.literal(behind, ","));
    if (count == steps) {
      builder_.jump(comma, next);
      return end;
    }
    next = comma;
  }
}

State JsonSchemaCompiler::compile_string(const Json& schema, const std::string& pointer,
                                         State from) {
  const Lengths lengths = lengths_of(schema, pointer, "minLength", "maxLength");
  const std::string pattern = pattern_of(schema, pointer);
  if (pattern.empty()) return rules_.string(from, lengths.least, lengths.most);
  const State text = consume_pattern(builder_, rules_.sets(), builder_.literal(from, "\""), pattern,
                                     rules_.spelling(), where_ + "#" + pointer);
  return builder_.literal(text, "\"");
}

std::string JsonSchemaCompiler::pattern_of(const Json& schema, const std::string& pointer) const {
  const auto pattern = schema.find("pattern");
  const auto format = schema.find("format");
  if (pattern == schema.end() && format == schema.end()) return {};
  if (schema.contains("minLength") || schema.contains("maxLength")) {
    refuse(pointer, pattern != schema.end() ? "pattern" : "format", "together with a length");
  }
  if (pattern != schema.end()) {
    if (!pattern->is_string()) refuse(pointer + "/pattern", "pattern", "not a string");
    if (format != schema.end()) refuse(pointer, "pattern", "together with format");
    const std::string& text = pattern->get_ref<const std::string&>();
    return text.empty() ? "(?:)" : text;
  }
  if (!format->is_string()) refuse(pointer + "/format", "format", "not a string");
  std::string text = pattern_of_format(format->get_ref<const std::string&>());
  if (text.empty()) {
    refuse(pointer + "/format", "format",
           fmt::format("\"{}\"", format->get<std::string>().substr(0, 100)));
  }
  return text;
}

JsonSchemaCompiler::Lengths JsonSchemaCompiler::lengths_of(const Json& schema,
                                                           const std::string& pointer,
                                                           const char* least,
                                                           const char* most) const {
  const auto read = [&](const char* key, int32_t otherwise) {
    const auto found = schema.find(key);
    if (found == schema.end()) return otherwise;
    const std::string inside = fmt::format("{}/{}", pointer, key);
    const bool whole = found->is_number_integer() ||
                       (found->is_number() && *found == std::floor(found->get<double>()));
    if (!whole || *found < 0) refuse(inside, key, "not a whole number");
    if (*found > static_cast<int64_t>(kMaxStates)) {
      refuse(inside, key, fmt::format("above {}", kMaxStates));
    }
    return found->get<int32_t>();
  };
  const Lengths lengths = {read(least, 0), read(most, kUnlimited)};
  if (lengths.most != kUnlimited && lengths.most < lengths.least) {
    refuse(pointer, most, fmt::format("below {}", least));
  }
  return lengths;
}

State JsonSchemaCompiler::compile_number(const Json& schema, const std::string& pointer,
                                         bool integer, State from) {
  NumberBounds bounds;
  const auto read = [&](const char* key) -> std::optional<double> {
    const auto found = schema.find(key);
    if (found == schema.end()) return std::nullopt;
    const std::string inside = fmt::format("{}/{}", pointer, key);
    if (!found->is_number()) refuse(inside, key, "not a number");
    const double bound = found->get<double>();
    if (!is_usable_bound(bound)) {
      refuse(inside, key, fmt::format("{} has more than {} digits", bound, kMaxNumberDigits));
    }
    return bound;
  };
  bounds.minimum = read("minimum");
  bounds.maximum = read("maximum");
  if (const auto above = read("exclusiveMinimum");
      above && (!bounds.minimum || *above >= *bounds.minimum)) {
    bounds.minimum = above;
    bounds.minimum_exclusive = true;
  }
  if (const auto below = read("exclusiveMaximum");
      below && (!bounds.maximum || *below <= *bounds.maximum)) {
    bounds.maximum = below;
    bounds.maximum_exclusive = true;
  }
  if (bounds.minimum || bounds.maximum) {
    return consume_bounded_number(builder_, from, bounds, integer);
  }
  return integer ? rules_.integer(from) : rules_.number(from);
}

void JsonSchemaCompiler::check_disjoint(const Json& branches, const std::string& pointer) const {
  if (branches.size() > kMaxBranches) {
    refuse(pointer, fmt::format("more than {} branches", kMaxBranches));
  }
  const auto resolved = [&](const Json& ref) -> const Json& { return resolve(ref, pointer); };
  for (std::size_t i = 0; i < branches.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (cannot_overlap(branches[j], branches[i], resolved)) continue;
      refuse(fmt::format("{}/{}", pointer, i), "oneOf",
             fmt::format("this branch may overlap with branch {}; anyOf allows that", j));
    }
  }
}

}  // namespace levin::text::grammar
