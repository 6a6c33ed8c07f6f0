#include "text/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/files.h"

namespace levin::text {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

std::string shown(const ordered_json& json) {
  const std::string text = json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  return text.size() > 200 ? text.substr(0, 200) + "..." : text;
}

[[noreturn]] void fail(const std::string& what, const std::string& where,
                       const std::string& expected, const std::string& found,
                       const std::string& hint = {}) {
  throw Error({.what = what, .where = where, .expected = expected, .found = found, .hint = hint});
}

void check_objects(const ordered_json& array, const std::string& name, const std::string& where) {
  if (!array.is_array()) {
    fail(fmt::format("{} are not an array", name), where, "an array of objects", shown(array));
  }
  for (std::size_t i = 0; i < array.size(); ++i) {
    if (!array[i].is_object()) {
      fail(fmt::format("{}[{}] is not an object", name, i), where, "an object", shown(array[i]));
    }
  }
}

// Nothing for a key that is absent or null.
const ordered_json* find(const ordered_json& object, const char* key) {
  const auto place = object.find(key);
  return place == object.end() || place->is_null() ? nullptr : &*place;
}

void check_string(const ordered_json& object, const char* key, const std::string& where) {
  const ordered_json* value = find(object, key);
  if (value == nullptr || value->is_string()) return;
  fail(fmt::format("\"{}\" has the wrong type", key), where, "a string", shown(*value));
}

void normalize_role(ordered_json& message, const std::string& where) {
  const ordered_json* role = find(message, "role");
  const std::string known = fmt::format("{}", fmt::join(kRoles, ", "));
  if (role == nullptr) fail("message has no role", where, known, shown(message));
  if (!role->is_string() || std::find(std::begin(kRoles), std::end(kRoles),
                                      role->get<std::string>()) == std::end(kRoles)) {
    fail("message has an unknown role", where, known, shown(*role));
  }
  if (*role == "developer") message["role"] = "system";
}

void normalize_tool_call(ordered_json& call, const std::string& where) {
  // Templates take a call with and without "function" around it.
  ordered_json& function = find(call, "function") == nullptr ? call : call["function"];
  const ordered_json* name = function.is_object() ? find(function, "name") : nullptr;
  if (name == nullptr || !name->is_string()) {
    fail("tool call names no function", where, R"({"function": {"name": "...", "arguments": {}}})",
         shown(call));
  }
  const ordered_json* arguments = find(function, "arguments");
  function["arguments"] = arguments == nullptr ? ordered_json::object()
                                               : arguments_object(*arguments, where + ".arguments");
}

void normalize_message(ordered_json& message, const std::string& where) {
  normalize_role(message, where);
  for (const char* key : {"function_call", "audio"}) {
    const ordered_json* value = find(message, key);
    if (value != nullptr) fail(fmt::format("\"{}\" is not supported", key), where, {}, {});
  }
  for (const char* key : {"name", "tool_call_id", "reasoning", "reasoning_content"}) {
    check_string(message, key, where);
  }
  if (find(message, "reasoning") != nullptr && find(message, "reasoning_content") == nullptr) {
    message["reasoning_content"] = message["reasoning"];
  }
  if (const ordered_json* content = find(message, "content")) {
    message["content"] = content_text(*content, where + ".content");
  } else if (message["role"] != "assistant") {
    fail("message has no content", where, "a string, or an array of parts of text", shown(message));
  }
  if (find(message, "tool_calls") == nullptr) return;
  ordered_json& calls = message["tool_calls"];
  check_objects(calls, "tool_calls", where);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    normalize_tool_call(calls[i], fmt::format("{}.tool_calls[{}]", where, i));
  }
}

void check_switch(const ordered_json& variables, const char* key, const std::string& where) {
  const ordered_json* value = find(variables, key);
  if (value == nullptr || value->is_boolean()) return;
  fail(fmt::format("\"{}\" has the wrong type", key), where, "true or false", shown(*value));
}

}  // namespace

void normalize_messages(ordered_json& messages, const std::string& where) {
  check_objects(messages, "messages", where);
  if (messages.empty()) {
    fail("there are no messages", where, "an array of at least one message", "[]");
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    normalize_message(messages[i], fmt::format("{}, messages[{}]", where, i));
  }
}

ordered_json parse_conversation(std::string_view json, const std::string& where) {
  ordered_json variables = parse_ordered_json(json, where);
  if (variables.is_array()) variables = {{"messages", std::move(variables)}};
  if (!variables.is_object() || !variables.contains("messages")) {
    fail("not a conversation", where,
         R"([{"role": "user", "content": "..."}], or an object with "messages")", shown(variables));
  }
  normalize_messages(variables["messages"], where);
  if (const ordered_json* tools = find(variables, "tools")) check_objects(*tools, "tools", where);
  for (const char* key : {"enable_thinking", "add_generation_prompt"}) {
    check_switch(variables, key, where);
  }
  return variables;
}

std::string content_text(const ordered_json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    fail("content is no text", path, "a string, or an array of parts of text", shown(content));
  }
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    const ordered_json& part = content[i];
    if (i > 0) text += '\n';
    if (part.is_string()) {
      text += part.get<std::string>();
      continue;
    }
    const ordered_json* type = part.is_object() ? find(part, "type") : nullptr;
    if (type == nullptr || (*type != "text" && *type != "input_text" && *type != "output_text")) {
      fail("content has a part that is not text", at, "type text",
           type == nullptr     ? shown(part)
           : type->is_string() ? "type " + type->get<std::string>()
                               : "type " + shown(*type),
           "the model reads text only");
    }
    const ordered_json* words = find(part, "text");
    if (words == nullptr || !words->is_string()) {
      fail("part of content has no text", at + ".text", "a string",
           words == nullptr ? "nothing" : shown(*words));
    }
    text += words->get<std::string>();
  }
  return text;
}

ordered_json arguments_object(const ordered_json& arguments, const std::string& path) {
  const char* expected = "a JSON object, or a string that holds one";
  if (arguments.is_object()) return arguments;
  if (!arguments.is_string()) {
    fail("arguments are no object", path, expected, shown(arguments));
  }
  const auto& text = arguments.get_ref<const std::string&>();
  if (text.empty()) return ordered_json::object();
  ordered_json parsed = parse_ordered_json(text, path);
  if (!parsed.is_object()) fail("arguments are no object", path, expected, shown(arguments));
  return parsed;
}

ordered_json parse_tools(std::string_view json, const std::string& where) {
  ordered_json tools = parse_ordered_json(json, where);
  check_objects(tools, "tools", where);
  return tools;
}

}  // namespace levin::text
