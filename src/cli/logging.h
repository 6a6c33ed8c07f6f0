// The log of the program, on standard error: stdout belongs to results.
#pragma once

#include <spdlog/formatter.h>

#include <memory>
#include <string>

namespace levin::cli {

void set_up_logging(const std::string& level);

// What clients and files bring into a message must not steer the terminal that shows it.
std::unique_ptr<spdlog::formatter> make_log_formatter();

}  // namespace levin::cli
