// POST /v1/messages, the API of Anthropic.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "serve/api/api_error.h"
#include "serve/api/messages.h"
#include "serve/api/sampling_fields.h"
#include "serve/api/tool_fields.h"

namespace levin::serve::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxStops = 64;

constexpr Field kFields[] = {
    {"model"},
    {"messages"},
    {"max_tokens"},
    {"system"},
    {"temperature"},
    {"top_p"},
    {"top_k"},
    {"stop_sequences"},
    {"stream"},
    {"tools"},
    {"tool_choice"},
    {"thinking"},
    {"metadata", Support::kNoEffect},
    {"service_tier", Support::kNoEffect},
    {"cache_control", Support::kNoEffect},  // prefixes are found by their tokens
    {"container", Support::kRefused},
    {"mcp_servers", Support::kRefused, "[]"},
    {"context_management", Support::kRefused},
    {"output_config", Support::kRefused, "{}", "use /v1/chat/completions with response_format"},
};

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
  throw ApiError(400, path + " " + problem, path);
}

Json call_of(const FieldReader& block) {
  const auto name = block.string("name");
  const Json* input = block.object("input");
  if (!name) block.fail("name", "a string");
  return {
      {"type", "function"},
      {"id", block.string("id").value_or("")},
      {"function", {{"name", *name}, {"arguments", input == nullptr ? Json::object() : *input}}}};
}

// A message whose content is an array of blocks becomes several: results of tools are turns of
// their own.
void add_blocks(const std::string& role, const Json& blocks, const std::string& path,
                Json& messages) {
  Json message = {{"role", role}, {"content", ""}};
  std::string text;
  bool something = false;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    if (!blocks[i].is_object()) fail(at, "must be an object");
    const FieldReader block(blocks[i], at + ".");
    const std::string type = block.string("type").value_or("");
    if (type == "text") {
      const auto words = block.string("text");
      if (!words) block.fail("text", "a string");
      text += (text.empty() ? "" : "\n") + *words;
      something = true;
    } else if (type == "tool_result" && role == "user") {
      const Json* content = block.find("content");
      messages.push_back(
          {{"role", "tool"},
           {"tool_call_id", block.string("tool_use_id").value_or("")},
           {"content", content == nullptr ? "" : content_text(*content, at + ".content")}});
    } else if (type == "tool_use" && role == "assistant") {
      message["tool_calls"].push_back(call_of(block));
      something = true;
    } else if (type == "thinking" && role == "assistant") {
      const auto thinking = block.string("thinking");
      if (!thinking) block.fail("thinking", "a string");
      message["reasoning_content"] = *thinking;
      something = true;
    } else {
      fail(at, fmt::format("has type {}, which is not supported here", type));
    }
  }
  message["content"] = std::move(text);
  if (something) messages.push_back(std::move(message));
}

Json read_messages(const FieldReader& fields) {
  Json messages = Json::array();
  if (const Json* system = fields.find("system")) {
    messages.push_back({{"role", "system"}, {"content", content_text(*system, "system")}});
  }
  const Json* given = fields.array("messages");
  if (given == nullptr || given->empty()) {
    fail("messages", "must be an array of at least one message");
  }
  for (std::size_t i = 0; i < given->size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    if (!(*given)[i].is_object()) fail(path, "must be an object");
    const FieldReader message((*given)[i], path + ".");
    const auto role = message.one_of("role", {"user", "assistant", "system"});
    const Json* content = message.find("content");
    if (!role) message.fail("role", "user or assistant");
    if (content == nullptr) message.fail("content", "a string or an array of blocks");
    if (content->is_array()) {
      add_blocks(*role, *content, path + ".content", messages);
    } else {
      messages.push_back({{"role", *role}, {"content", content_text(*content, path + ".content")}});
    }
  }
  return messages;
}

void read_tools(const FieldReader& fields, GenerationRequest& request, Json& variables) {
  Json tools = Json::array();
  if (const Json* given = fields.array("tools")) {
    for (std::size_t i = 0; i < given->size(); ++i) {
      const std::string path = fmt::format("tools[{}]", i);
      if (!(*given)[i].is_object()) fail(path, "must be an object");
      const FieldReader tool((*given)[i], path + ".");
      if (tool.string("type").value_or("custom") != "custom") {
        fail(path + ".type", "must be custom: this server runs no tools itself");
      }
      const auto name = tool.string("name");
      if (!name) tool.fail("name", "a string");
      add_tool(tools, *name, tool.find("description"), tool.object("input_schema"));
    }
  }
  ToolMode mode = ToolMode::kAuto;
  std::string name;
  if (const Json* choice = fields.object("tool_choice")) {
    const FieldReader reader(*choice, "tool_choice.");
    const auto type = reader.one_of("type", {"auto", "any", "tool", "none"});
    if (!type) reader.fail("type", "one of auto, any, tool, none");
    if (*type == "none") mode = ToolMode::kNone;
    if (*type == "any") mode = ToolMode::kRequired;
    if (*type == "tool") mode = ToolMode::kNamed;
    if (*type == "tool") name = reader.string("name").value_or("");
    request.parallel_tool_calls = !reader.boolean("disable_parallel_tool_use").value_or(false);
  }
  set_tools(std::move(tools), mode, name, request, variables);
}

}  // namespace

std::span<const Field> messages_fields() {
  return kFields;
}

GenerationRequest parse_messages(std::string_view body, const ModelFacts& facts) {
  const Json object = parse_body(body);
  GenerationRequest request;
  request.dialect = Dialect::kMessages;
  request.unknown_fields = check_fields(object, messages_fields());
  const FieldReader fields(object);
  request.model = fields.string("model").value_or("");
  request.sampling = facts.default_sampling;
  read_sampling(fields, request.sampling);
  request.sampling.stop = read_strings(fields, "stop_sequences", kMaxStops);
  request.max_tokens = fields.integer("max_tokens", 1, std::numeric_limits<int64_t>::max());
  request.stream = fields.boolean("stream").value_or(false);
  if (const Json* thinking = fields.object("thinking")) {
    const FieldReader reader(*thinking, "thinking.");
    const auto type = reader.one_of("type", {"enabled", "disabled", "adaptive"});
    if (type) request.enable_thinking = *type != "disabled";
  }
  Json variables = {{"messages", read_messages(fields)}};
  if (request.enable_thinking) variables["enable_thinking"] = *request.enable_thinking;
  read_tools(fields, request, variables);
  request.variables = std::make_shared<const Json>(std::move(variables));
  check_sampling(request);
  return request;
}

}  // namespace levin::serve::api
