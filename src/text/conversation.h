// Conversations as files and requests hold them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace levin::text {

// The variables of a chat template out of JSON: an array of messages, or an object with "messages"
// and whatever else the template takes (tools, enable_thinking, ...). Keys keep their order, since
// templates print arguments and schemas in it. Throws Error naming `where` for what is not strict
// JSON and as normalize_messages.
nlohmann::ordered_json parse_conversation(std::string_view json, const std::string& where);

// Brings an array of at least one message into the form that templates know: a string as content
// (content_text), objects as arguments of tool calls, reasoning under "reasoning_content",
// "developer" as "system". Keys that are not known stay as they are. Throws Error naming `where`
// and the index of the message for a role that does not exist, content that is missing or no text,
// and known keys of another type.
void normalize_messages(nlohmann::ordered_json& messages, const std::string& where);

// The text of a content that is a string or an array of parts, which are strings or {"type": "text"
// (or input_text, output_text), "text": ...}; parts are joined by line breaks, as in vLLM. Throws
// Error whose `where` is `path` with what it leads to: a part that is not text would reach the
// model unseen.
std::string content_text(const nlohmann::ordered_json& content, const std::string& path);

// The arguments of a tool call: a JSON object, or a string that holds one; nothing: an empty
// object. Throws Error at `path`.
nlohmann::ordered_json arguments_object(const nlohmann::ordered_json& arguments,
                                        const std::string& path);

// The tools of a template: an array of objects.
nlohmann::ordered_json parse_tools(std::string_view json, const std::string& where);

}  // namespace levin::text
