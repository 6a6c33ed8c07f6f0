#include "serve/http/printable.h"

#include <fmt/format.h>

namespace levin::serve::http {

std::string printable(std::string_view text, std::size_t most) {
  std::string out;
  for (const char c : text.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > 0x20 && byte < 0x7f && c != '\\') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  return text.size() > most ? out + "..." : out;
}

}  // namespace levin::serve::http
