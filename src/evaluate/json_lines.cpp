#include "evaluate/json_lines.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/files.h"
#include "text/utf8.h"

namespace levin::evaluate {

void for_each_json_line(const std::filesystem::path& file,
                        const std::function<void(const nlohmann::ordered_json& object,
                                                 const std::string& where)>& function) {
  const std::string content = read_text(file);
  text::require_utf8(content, file.string());
  int64_t line_number = 0;
  int64_t objects = 0;
  std::string_view rest = content;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;

    const std::string where = fmt::format("{}:{}", file.string(), line_number);
    const nlohmann::ordered_json object = parse_ordered_json(line, where);
    if (!object.is_object()) {
      throw Error({.what = "line is not a JSON object",
                   .where = where,
                   .expected = "{...}",
                   .found = std::string(line.substr(0, 60)),
                   .hint = {}});
    }
    function(object, where);
    ++objects;
  }
  if (objects == 0) {
    throw Error({.what = "file holds no JSON object",
                 .where = file.string(),
                 .expected = "one JSON object per line",
                 .found = {},
                 .hint = {}});
  }
}

}  // namespace levin::evaluate
