// Results on standard output. What cannot be written there is an error like any other: a script
// must not take half a result for a whole one.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace levin::cli {

// The text as it is; on a terminal with a newline behind it.
void print_text(std::string_view text);

// One JSON document and a newline, without control characters; bytes that are no UTF-8 (file names)
// are replaced. `indent` < 0: on one line.
void print_json(const nlohmann::ordered_json& json, int indent = 2);

// What took long to find out goes to a file and to standard output. A full disk must not cost the
// report, nor a closed pipe the file: `print` is called even where `write` throws, whose Error is
// then thrown.
void write_and_print(const std::function<void()>& write, const std::function<void()>& print);

// Throws Error (ExitCode::kMachine) when anything printed so far was lost. A closed pipe
// (`| head`) is no news to the user: then the message is empty.
void check_output();

}  // namespace levin::cli
