#include "serve/api/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/api_error.h"
#include "serve/api/messages.h"

namespace levin::serve::api {

using Json = nlohmann::ordered_json;

void add_tool(Json& tools, const std::string& name, const Json* description,
              const Json* parameters) {
  Json function = {{"name", name}};
  if (description != nullptr) function["description"] = *description;
  if (parameters != nullptr) function["parameters"] = *parameters;
  tools.push_back({{"type", "function"}, {"function", std::move(function)}});
}

void set_tools(Json tools, ToolMode mode, const std::string& name, GenerationRequest& request,
               Json& variables) {
  if (tools.empty()) {
    if (mode == ToolMode::kRequired || mode == ToolMode::kNamed) {
      throw ApiError(400, "tool_choice needs tools", "tool_choice");
    }
    return;
  }
  check_tools(tools);
  const bool offered =
      mode != ToolMode::kNamed || std::any_of(tools.begin(), tools.end(), [&](const Json& tool) {
        return tool["function"]["name"] == name;
      });
  if (!offered) {
    throw ApiError(400, fmt::format("tool_choice names {}, which is not among the tools", name),
                   "tool_choice");
  }
  request.tool_mode = mode;
  request.tool_name = name;
  if (request.forces_calls() && request.shape != OutputShape::kText) {
    throw ApiError(400, "a JSON format and a forced tool_choice exclude each other", "tool_choice");
  }
  if (mode != ToolMode::kNone) variables["tools"] = tools;
  request.tools = std::make_shared<const Json>(std::move(tools));
}

}  // namespace levin::serve::api
