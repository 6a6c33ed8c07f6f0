#include "cli/validators.h"

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <system_error>

namespace levin::cli {
namespace {

template <typename Integer>
bool parse(const std::string& text, Integer& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

}  // namespace

CLI::Validator at_least(int64_t least) {
  const std::string description = fmt::format("INT >= {}", least);
  return CLI::Validator(
      [least](std::string& text) {
        int64_t value = 0;
        if (parse(text, value) && value >= least) return std::string();
        return fmt::format("{} is not an integer of at least {}", text, least);
      },
      description);
}

CLI::Validator unsigned_64() {
  return CLI::Validator(
      [](std::string& text) {
        uint64_t value = 0;
        if (parse(text, value)) return std::string();
        return fmt::format("{} is not an integer from 0 to {}", text, UINT64_MAX);
      },
      "UINT64");
}

}  // namespace levin::cli
