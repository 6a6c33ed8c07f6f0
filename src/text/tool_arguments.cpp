#include "text/tool_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.h"
#include "text/python_literal.h"

namespace levin::text {
namespace {

using nlohmann::ordered_json;

constexpr int kMaxSchemaDepth = 32;

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string to_ascii_lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower;
}

// The names of JSON schema, and those that tools written without care use.
JsonTypes type_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, JsonTypes>, 17> kTypes = {{{"null", kNull},
                                                                              {"integer", kInteger},
                                                                              {"int", kInteger},
                                                                              {"int32", kInteger},
                                                                              {"int64", kInteger},
                                                                              {"long", kInteger},
                                                                              {"number", kNumber},
                                                                              {"float", kNumber},
                                                                              {"double", kNumber},
                                                                              {"boolean", kBoolean},
                                                                              {"bool", kBoolean},
                                                                              {"object", kObject},
                                                                              {"dict", kObject},
                                                                              {"array", kArray},
                                                                              {"list", kArray},
                                                                              {"string", kString},
                                                                              {"str", kString}}};
  const std::string lower = to_ascii_lower(name);
  for (const auto& [known, type] : kTypes) {
    if (known == lower) return type;
  }
  return kString;
}

JsonTypes type_of_value(const ordered_json& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_number_integer()) return kInteger;
  if (value.is_number()) return kNumber;
  if (value.is_object()) return kObject;
  if (value.is_array()) return kArray;
  return kString;
}

JsonTypes collect_types(const ordered_json& schema, const ordered_json& root, int depth) {
  if (!schema.is_object() || depth > kMaxSchemaDepth) return 0;
  JsonTypes types = 0;
  const auto add_each = [&](const char* key, auto&& types_of) {
    const auto found = schema.find(key);
    if (found == schema.end()) return;
    if (!found->is_array()) return;
    for (const ordered_json& entry : *found) types |= types_of(entry);
  };
  const auto named = [](const ordered_json& entry) {
    return entry.is_string() ? type_named(entry.get_ref<const std::string&>()) : JsonTypes{0};
  };
  if (const auto type = schema.find("type"); type != schema.end()) types |= named(*type);
  add_each("type", named);
  add_each("enum", type_of_value);
  if (const auto value = schema.find("const"); value != schema.end()) {
    types |= type_of_value(*value);
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    add_each(key,
             [&](const ordered_json& branch) { return collect_types(branch, root, depth + 1); });
  }
  if (const auto ref = schema.find("$ref"); ref != schema.end() && ref->is_string()) {
    const std::string& target = ref->get_ref<const std::string&>();
    if (target.starts_with("#/")) {
      try {
        const ordered_json::json_pointer pointer(target.substr(1));
        if (root.contains(pointer)) types |= collect_types(root.at(pointer), root, depth + 1);
      } catch (const ordered_json::exception&) {  // not a pointer: the schema says nothing
      }
    }
  }
  return types;
}

// A JSON number for text that reads as one, with a plus sign or zeros in front if need be.
std::optional<std::string> to_json_number(std::string_view text) {
  std::string number;
  if (text.starts_with('-')) number = "-";
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  while (text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9') {
    text.remove_prefix(1);
  }
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  number += text;
  if (!is_json(number)) return std::nullopt;
  if (!std::isfinite(std::strtod(number.c_str(), nullptr))) return std::nullopt;
  return number;
}

bool is_whole(const std::string& number) {
  if (number.find_first_of(".eE") == std::string::npos) return true;
  const double value = std::strtod(number.c_str(), nullptr);
  return value == std::floor(value);
}

std::optional<std::string> to_json_container(std::string_view text, JsonTypes types) {
  const bool kind_fits = (text.starts_with('{') && (types & kObject) != 0) ||
                         (text.starts_with('[') && (types & kArray) != 0);
  if (!kind_fits) return std::nullopt;
  if (is_json(text)) return std::string(text);
  return python_literal_to_json(text);
}

std::optional<std::string> to_typed_json(std::string_view text, JsonTypes types) {
  const std::string_view trimmed = trim(text);
  const std::string lower = to_ascii_lower(trimmed.substr(0, 8));
  // Templates write null as Python's None.
  if ((types & kNull) != 0 && (lower == "null" || trimmed == "None")) return "null";
  if ((types & (kInteger | kNumber)) != 0) {
    auto number = to_json_number(trimmed);
    if (number && ((types & kNumber) != 0 || is_whole(*number))) return number;
  }
  if ((types & kBoolean) != 0 && (lower == "true" || lower == "false")) return lower;
  return to_json_container(trimmed, types);
}

}  // namespace

ToolCallFormat parse_tool_call_format(std::string_view name) {
  if (name == "qwen3_coder" || name == "qwen3_xml") return ToolCallFormat::kQwen3Coder;
  if (name == "none") return ToolCallFormat::kNone;
  throw Error({.what = "unknown tool call parser",
               .where = "--tool-call-parser",
               .expected = "qwen3_coder, qwen3_xml or none",
               .found = fmt::format("\"{}\"", name.substr(0, 100)),
               .hint = {}});
}

JsonTypes types_of_schema(const ordered_json& schema, const ordered_json& root) {
  const JsonTypes types = collect_types(schema, root, 0);
  return types == 0 ? kString : types;
}

ToolParameters::ToolParameters(const ordered_json& tools) {
  const auto refuse = [](std::size_t index, const char* expected) {
    throw Error({.what = "tool is not usable",
                 .where = fmt::format("tools[{}]", index),
                 .expected = expected,
                 .found = {},
                 .hint = {}});
  };
  if (!tools.is_array()) {
    throw Error({.what = "tools are not a list",
                 .where = "tools",
                 .expected = "an array of objects",
                 .found = tools.type_name(),
                 .hint = {}});
  }
  for (std::size_t i = 0; i < tools.size(); ++i) {
    if (!tools[i].is_object()) refuse(i, "an object");
    const auto inner = tools[i].find("function");
    const ordered_json& function = inner == tools[i].end() ? tools[i] : *inner;
    if (!function.is_object()) refuse(i, "function as an object");
    const auto name = function.find("name");
    if (name == function.end() || !name->is_string()) refuse(i, "a name");
    auto& parameters = tools_[name->get<std::string>()];
    const auto schema = function.find("parameters");
    if (schema == function.end() || schema->is_null()) continue;
    if (!schema->is_object()) refuse(i, "parameters as an object");
    const auto properties = schema->find("properties");
    if (properties == schema->end() || !properties->is_object()) continue;
    for (const auto& [key, value] : properties->items()) {
      parameters[key] = types_of_schema(value, *schema);
    }
  }
}

JsonTypes ToolParameters::types(const std::string& tool, const std::string& parameter) const {
  const auto found = tools_.find(tool);
  if (found == tools_.end()) return kString;
  const auto types = found->second.find(parameter);
  return types == found->second.end() ? kString : types->second;
}

std::string argument_to_json(std::string_view text, JsonTypes types) {
  if (auto typed = to_typed_json(text, types)) return *std::move(typed);
  std::string json = "\"";
  append_json_escaped(json, text);
  json += '"';
  return json;
}

bool is_json(std::string_view text) {
  // nlohmann's parser takes a zero byte for the end of the text.
  return text.find('\0') == text.npos && nlohmann::json::accept(text);
}

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
}

}  // namespace levin::text
