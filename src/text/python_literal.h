// Models trained on Python write dictionaries and lists as Python prints them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace levin::text {

// The JSON of a Python literal made of dict, list, str, int, float, True, False and None; nothing
// for what is not one or has no JSON form.
std::optional<std::string> python_literal_to_json(std::string_view text);

}  // namespace levin::text
