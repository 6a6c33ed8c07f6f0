// The transcripts of tests/data/text/assistant_cases.json: an output, how to parse it, and the
// message it is.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/files.h"
#include "text/assistant_parser.h"

namespace levin::text {

struct AssistantCase {
  std::string name;
  AssistantFormat format;
  std::string output;
  nlohmann::ordered_json message;
};

inline AssistantFormat assistant_format(const nlohmann::ordered_json& json,
                                        const ToolParameters& tools) {
  AssistantFormat format;
  format.tools = tools;
  format.reasoning = parse_reasoning_format(json.value("reasoning_parser", "nemotron_v3"));
  format.tool_calls = parse_tool_call_format(json.value("tool_call_parser", "qwen3_coder"));
  if (json.contains("enable_thinking")) format.enable_thinking = json["enable_thinking"];
  format.force_nonempty_content = json.value("force_nonempty_content", false);
  format.verbatim_content = json.value("verbatim_content", false);
  const std::string prompt = json.value("prompt", "");
  if (prompt == "open") format.prompt = PromptReasoning::kOpen;
  if (prompt == "closed") format.prompt = PromptReasoning::kClosed;
  if (prompt == "absent") format.prompt = PromptReasoning::kAbsent;
  return format;
}

inline std::vector<AssistantCase> assistant_cases() {
  const std::string path = std::string(LEVIN_SOURCE_DIR) + "/tests/data/text/assistant_cases.json";
  const auto file = parse_ordered_json(read_text(path), path);
  const ToolParameters tools(file["tools"]);
  std::vector<AssistantCase> cases;
  for (const auto& json : file["cases"]) {
    cases.push_back(
        {.name = json["name"],
         .format = assistant_format(json.value("format", nlohmann::ordered_json::object()), tools),
         .output = json["output"],
         .message = json["message"]});
  }
  return cases;
}

// The same form as in the file; ids are left out.
inline nlohmann::ordered_json to_json(const AssistantMessage& message) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!message.reasoning.empty()) json["reasoning"] = message.reasoning;
  if (!message.content.empty()) json["content"] = message.content;
  for (const ToolCall& call : message.tool_calls) {
    json["tool_calls"].push_back(
        {{"name", call.name}, {"arguments", call.arguments}, {"closed", call.closed}});
  }
  if (message.malformed != 0) json["malformed"] = message.malformed;
  if (message.content_from_reasoning) json["content_from_reasoning"] = true;
  return json;
}

}  // namespace levin::text
