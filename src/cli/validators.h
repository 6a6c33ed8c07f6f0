// Checks of flag values whose messages say what would be right.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace levin::cli {

// Integers from `least` on that 63 bits hold.
CLI::Validator at_least(int64_t least);

// What a 64-bit unsigned number can be; strtoull would wrap and clamp.
CLI::Validator unsigned_64();

// Numbers with a suffix like 8M, from `least` on, that 63 bits hold; for options of uint64_t.
CLI::Option* size_at_least(CLI::Option* option, uint64_t least);

// Throws Error for a key, not an empty one, that no header can carry; `where` it came from.
void check_api_key(const std::string& key, const std::string& where);

}  // namespace levin::cli
