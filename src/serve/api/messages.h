// Conversations as clients send them, and as chat templates take them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace levin::serve::api {

// The messages of a chat request, each with a string as content (parts are joined with line breaks,
// as in vLLM), reasoning under the name of templates (reasoning_content), tool calls with objects
// as arguments, and "developer" as "system". Throws ApiError, also for parts that are not text.
nlohmann::ordered_json normalize_messages(const nlohmann::ordered_json& messages);

// The text of a content that is a string or an array of parts {"type": "text" (or input_text,
// output_text), "text": ...}. `path` names it in errors.
std::string content_text(const nlohmann::ordered_json& content, const std::string& path);

// Arguments of a tool call: a JSON object, or a string that holds one.
nlohmann::ordered_json arguments_object(const nlohmann::ordered_json& arguments,
                                        const std::string& path);

// Checks an array of {"type": "function", "function": {"name", "parameters"}}.
void check_tools(const nlohmann::ordered_json& tools);

}  // namespace levin::serve::api
