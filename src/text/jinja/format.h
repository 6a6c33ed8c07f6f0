// Values as text, spelled as Python spells them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace levin::text::jinja {

// repr() of a float: the shortest digits that read back equal, "1e+16" from 1e16 on.
std::string python_float(double value);

// str(value), which is what {{ value }} prints. Fails for what has no useful text (a macro, a
// generator).
std::string to_text(const Value& value, Budget& budget);

// json.dumps(value, ensure_ascii=..., indent=..., separators=..., sort_keys=...).
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // of one level; absent for a single line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace levin::text::jinja
