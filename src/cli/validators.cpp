#include "cli/validators.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>

#include "core/error.h"

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

CLI::Option* size_at_least(CLI::Option* option, uint64_t least) {
  const auto check = [least](std::string& text) {
    uint64_t value = 0;
    if (!parse(text, value) || value < least) return fmt::format("{} is less than {}", text, least);
    if (value <= INT64_MAX) return std::string();
    return fmt::format("{} is more than {}", text, INT64_MAX);
  };
  // Before the suffix is taken off: CLI11 reads -1 as 2^64 - 1.
  const auto check_sign = [](std::string& text) {
    return text.find('-') == text.npos ? std::string() : fmt::format("{} is negative", text);
  };
  return option->transform(CLI::AsSizeValue(false))
      ->transform(CLI::Validator(check_sign, ""))  // which goes before the others
      ->check(CLI::Validator(check, ""));
}

void check_api_key(const std::string& key, const std::string& where) {
  const auto carried = [](unsigned char c) { return c >= 0x20 && c < 0x7f; };
  if (key.front() != ' ' && key.back() != ' ' && std::all_of(key.begin(), key.end(), carried)) {
    return;
  }
  throw Error({.what = "an API key is no text of one line",
               .where = where,
               .expected = "visible ASCII characters, without blanks around them",
               .found = "a line's end, a blank at an end or another character",
               .hint = "does it come from a file with an empty line at its end?"});
}

}  // namespace levin::cli
