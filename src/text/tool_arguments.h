// The arguments of a tool call: text in the model's markup, JSON for the caller. A value is typed
// by the JSON schema of its parameter, as in vLLM (tool_parsers/utils.py): of the types the schema
// allows, the first of null, integer, number, boolean, object, array that the text is a value of;
// otherwise a string. Parameters without a schema or without a type are strings.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

namespace levin::text {

// kQwen3Coder: vLLM's --tool-call-parser qwen3_coder, also called qwen3_xml.
enum class ToolCallFormat : uint8_t { kNone, kQwen3Coder };

// The value of --tool-call-parser. Throws Error naming the known ones.
ToolCallFormat parse_tool_call_format(std::string_view name);

// A set of JSON types.
using JsonTypes = uint8_t;
inline constexpr JsonTypes kNull = 1;
inline constexpr JsonTypes kInteger = 2;
inline constexpr JsonTypes kNumber = 4;
inline constexpr JsonTypes kBoolean = 8;
inline constexpr JsonTypes kObject = 16;
inline constexpr JsonTypes kArray = 32;
inline constexpr JsonTypes kString = 64;

// The types that a JSON schema allows: type (a name or a list), enum, const, and the branches of
// anyOf, oneOf and allOf; $ref is followed inside `root`. kString when it says nothing.
JsonTypes types_of_schema(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& root);

// The tools of a request, by name.
class ToolParameters {
 public:
  ToolParameters() = default;
  // `tools` is an array of {"type": "function", "function": {"name", "parameters"}}, or of the
  // inner objects. Throws Error for anything else.
  explicit ToolParameters(const nlohmann::ordered_json& tools);

  bool empty() const { return tools_.empty(); }
  bool contains(const std::string& tool) const { return tools_.contains(tool); }
  JsonTypes types(const std::string& tool, const std::string& parameter) const;

 private:
  std::unordered_map<std::string, std::unordered_map<std::string, JsonTypes>> tools_;
};

// The JSON value that `text` stands for. Always valid JSON; `text` is valid UTF-8.
std::string argument_to_json(std::string_view text, JsonTypes types);

// Whether `text` is a JSON document and nothing else.
bool is_json(std::string_view text);

// Appends valid UTF-8 as the inside of a JSON string.
void append_json_escaped(std::string& out, std::string_view text);

}  // namespace levin::text
