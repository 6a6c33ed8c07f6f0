// The escapes of string literals, which are Python's.
#pragma once

#include <string>
#include <string_view>

namespace levin::text::jinja {

bool is_hex_digit(char c);

// The value of what stands between the quotes. An unknown escape stays as it is written. Throws
// Failure with `line` for one that is malformed, for \N{...} and for surrogates, which UTF-8 cannot
// hold.
std::string unescape(std::string_view literal, int line);

}  // namespace levin::text::jinja
