// Conversations as files and requests hold them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace levin::text {

// The variables of a chat template out of JSON: an array of messages, or an object with "messages"
// and whatever else the template takes (tools, enable_thinking, ...). Keys keep their order, since
// templates print arguments and schemas in it. Throws Error naming `where` for what is not strict
// JSON and for messages that are not objects.
nlohmann::ordered_json parse_conversation(std::string_view json, const std::string& where);

// The tools of a template: an array of objects.
nlohmann::ordered_json parse_tools(std::string_view json, const std::string& where);

}  // namespace levin::text
