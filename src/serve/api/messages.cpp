#include "serve/api/messages.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/error.h"
#include "serve/api/api_error.h"
#include "serve/api/fields.h"
#include "text/conversation.h"
#include "text/tool_arguments.h"

namespace levin::serve::api {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& path, std::string_view problem) {
  throw ApiError(400, fmt::format("{} {}", path, problem), path);
}

// What `function` refuses, with the field that it names.
template <typename Function>
auto as_api_error(Function&& function) {
  try {
    return function();
  } catch (const Error& error) {
    throw ApiError(400, to_api_error(error).message(), error.parts().where);
  }
}

Json normalize_tool_calls(const Json& calls, const std::string& path) {
  if (!calls.is_array()) fail(path, "must be an array");
  Json normalized = Json::array();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    if (!calls[i].is_object()) fail(at, "must be an object with a function");
    const FieldReader call(calls[i], at + ".");
    const Json* function = call.object("function");
    if (function == nullptr) fail(at, "must be an object with a function");
    const FieldReader inner(*function, at + ".function.");
    const auto name = inner.string("name");
    if (!name) inner.fail("name", "a string");
    Json kept = {{"type", "function"}};
    if (const auto id = call.string("id")) kept["id"] = *id;
    const Json* arguments = inner.find("arguments");
    kept["function"] = {
        {"name", *name},
        {"arguments", arguments == nullptr
                          ? Json::object()
                          : arguments_object(*arguments, inner.path_of("arguments"))}};
    normalized.push_back(std::move(kept));
  }
  return normalized;
}

std::string normalized_role(const FieldReader& message) {
  const auto role = message.one_of("role", {"system", "developer", "user", "assistant", "tool"});
  if (!role) message.fail("role", "one of system, developer, user, assistant, tool");
  return *role == "developer" ? "system" : *role;
}

Json normalize_message(const Json& message, const std::string& path) {
  if (!message.is_object()) fail(path, "must be an object");
  const FieldReader fields(message, path + ".");
  Json normalized = {{"role", normalized_role(fields)}};
  const bool assistant = normalized["role"] == "assistant";
  const Json* calls = fields.find("tool_calls");
  const Json* content = fields.find("content");
  if (content != nullptr) {
    normalized["content"] = content_text(*content, path + ".content");
  } else if (assistant) {
    normalized["content"] = "";
  } else {
    fail(path + ".content", "is missing");
  }
  for (const char* name : {"function_call", "audio"}) {
    if (fields.find(name) != nullptr) fail(fields.path_of(name), "is not supported");
  }
  for (const char* name : {"name", "tool_call_id"}) {
    if (const auto value = fields.string(name)) normalized[name] = *value;
  }
  for (const char* name : {"reasoning", "reasoning_content"}) {
    const auto value = fields.string(name);
    if (value && assistant) normalized["reasoning_content"] = *value;
  }
  if (calls != nullptr && assistant) {
    normalized["tool_calls"] = normalize_tool_calls(*calls, path + ".tool_calls");
  }
  return normalized;
}

}  // namespace

std::string content_text(const Json& content, const std::string& path) {
  return as_api_error([&] { return text::content_text(content, path); });
}

Json arguments_object(const Json& arguments, const std::string& path) {
  return as_api_error([&] { return text::arguments_object(arguments, path); });
}

Json normalize_messages(const Json& messages) {
  if (!messages.is_array() || messages.empty()) {
    fail("messages", "must be an array of at least one message");
  }
  Json normalized = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    normalized.push_back(normalize_message(messages[i], fmt::format("messages[{}]", i)));
  }
  return normalized;
}

void check_tools(const Json& tools) {
  std::unordered_set<std::string> names;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string at = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) fail(at, "must be an object");
    const FieldReader tool(tools[i], at + ".");
    if (tool.string("type").value_or("function") != "function") {
      fail(at + ".type", "must be function: other tools are not supported");
    }
    const Json* function = tool.object("function");
    if (function == nullptr) fail(at, "must have a function");
    const FieldReader inner(*function, at + ".function.");
    const auto name = inner.string("name");
    if (!name || name->empty()) inner.fail("name", "a string");
    if (!names.insert(*name).second) fail(at, "has the name of another tool");
    (void)inner.object("parameters");
  }
  try {
    (void)text::ToolParameters(tools);
  } catch (const Error& error) {
    throw to_api_error(error);
  }
}

}  // namespace levin::serve::api
