#include "text/grammar/string_formats.h"

#include <fmt/format.h>

namespace levin::text::grammar {
namespace {

constexpr std::string_view kDate =
    "([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
    "02-(0[1-9]|1[0-9]|2[0-8])))";
constexpr std::string_view kTime =
    "(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
    ")";
constexpr std::string_view kLabel = "([A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?)";

}  // namespace

std::string pattern_of_format(std::string_view format) {
  constexpr std::string_view kByte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  if (format == "date") return fmt::format("^{}$", kDate);
  if (format == "time") return fmt::format("^{}$", kTime);
  if (format == "date-time") return fmt::format("^{}T{}$", kDate, kTime);
  if (format == "uuid") return "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$";
  if (format == "ipv4") return fmt::format("^{0}\\.{0}\\.{0}\\.{0}$", kByte);
  if (format == "hostname") return fmt::format("^{0}(\\.{0}){{0,3}}$", kLabel);
  if (format == "email") {
    return fmt::format(
        "^[A-Za-z0-9_%+-]{{1,30}}(\\.[A-Za-z0-9_%+-]{{1,30}}){{0,2}}@{0}(\\.{0}){{1,3}}$", kLabel);
  }
  if (format == "uri") {
    return fmt::format(
        "^[a-z][a-z0-9+.-]{{0,15}}://{0}(\\.{0}){{0,3}}(:[0-9]{{1,4}})?"
        "(/[A-Za-z0-9._~@!$&'()*+,;=:-]*)*([?][A-Za-z0-9._~@!$&'()*+,;=:/-]*)?$",
        kLabel);
  }
  return {};
}

}  // namespace levin::text::grammar
