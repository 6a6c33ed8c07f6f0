#include "core/plural.h"

#include <fmt/format.h>

namespace levin {

std::string counted(int64_t count, std::string_view noun, std::string_view plural) {
  if (count == 1) return fmt::format("1 {}", noun);
  return plural.empty() ? fmt::format("{} {}s", count, noun) : fmt::format("{} {}", count, plural);
}

std::string counted(std::size_t count, std::string_view noun, std::string_view plural) {
  return counted(static_cast<int64_t>(count), noun, plural);
}

}  // namespace levin
