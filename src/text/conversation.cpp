#include "text/conversation.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/files.h"

namespace levin::text {
namespace {

using nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& what, const std::string& where, const ordered_json& found,
                       const std::string& expected) {
  const std::string text = found.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  throw Error({.what = what,
               .where = where,
               .expected = expected,
               .found = text.size() > 200 ? text.substr(0, 200) + "..." : text,
               .hint = {}});
}

void check_objects(const ordered_json& array, const std::string& name, const std::string& where) {
  if (!array.is_array()) {
    fail(fmt::format("{} are not an array", name), where, array, "an array of objects");
  }
  for (std::size_t i = 0; i < array.size(); ++i) {
    if (!array[i].is_object()) {
      fail(fmt::format("{}[{}] is not an object", name, i), where, array[i], "an object");
    }
  }
}

}  // namespace

ordered_json parse_conversation(std::string_view json, const std::string& where) {
  ordered_json variables = parse_ordered_json(json, where);
  if (variables.is_array()) variables = {{"messages", std::move(variables)}};
  if (!variables.is_object() || !variables.contains("messages")) {
    fail("not a conversation", where, variables,
         R"([{"role": "user", "content": "..."}], or an object with "messages")");
  }
  check_objects(variables["messages"], "messages", where);
  return variables;
}

ordered_json parse_tools(std::string_view json, const std::string& where) {
  ordered_json tools = parse_ordered_json(json, where);
  check_objects(tools, "tools", where);
  return tools;
}

}  // namespace levin::text
