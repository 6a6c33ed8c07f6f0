// JSONL as evaluation data comes in: one JSON object per line, checked line by line.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace levin::evaluate {

// Calls `function(object, where)` for every line that is not blank, `where` being "file:line". Keys
// keep their order, because templates render them in it. Throws Error with file and line for bytes
// that are not UTF-8, for what is not JSON or not an object, for duplicate keys, and when the file
// holds no object at all.
void for_each_json_line(const std::filesystem::path& file,
                        const std::function<void(const nlohmann::ordered_json& object,
                                                 const std::string& where)>& function);

}  // namespace levin::evaluate
