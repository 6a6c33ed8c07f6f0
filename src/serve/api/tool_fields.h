// Tools and the choice among them, as the younger APIs write them, in the form of chat completions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "serve/api/generation_request.h"

namespace levin::serve::api {

// Adds {"name", "description", "parameters"} to `tools`; null parts are left out.
void add_tool(nlohmann::ordered_json& tools, const std::string& name,
              const nlohmann::ordered_json* description, const nlohmann::ordered_json* parameters);

// Puts the tools into the request and its variables. `mode` is what the client chose; kNone for
// "auto" without tools. Throws ApiError for a choice that the tools do not offer.
void set_tools(nlohmann::ordered_json tools, ToolMode mode, const std::string& name,
               GenerationRequest& request, nlohmann::ordered_json& variables);

}  // namespace levin::serve::api
