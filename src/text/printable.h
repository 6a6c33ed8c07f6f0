// Text of others for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace levin::text {

// `text` with control characters escaped ("\x1b"), but for those in `kept`, so that it cannot steer
// a terminal; bytes that are not UTF-8 become U+FFFD.
std::string printable(std::string_view text, std::string_view kept = "");

}  // namespace levin::text
