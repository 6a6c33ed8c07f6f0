#include "text/printable.h"

#include <fmt/format.h>

#include "text/utf8.h"

namespace levin::text {

std::string printable(std::string_view text, std::string_view kept) {
  const std::string valid = to_valid_utf8(text);
  std::string out;
  for (std::size_t at = 0; at < valid.size();) {
    const Utf8Step step = decode_utf8(valid, at);
    const bool control = step.value < 0x20 || (step.value >= 0x7f && step.value < 0xa0);
    if (control && kept.find(valid[at]) == kept.npos) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(step.value));
    } else {
      out.append(valid, at, step.length);
    }
    at += step.length;
  }
  return out;
}

}  // namespace levin::text
