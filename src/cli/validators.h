// Checks of flag values whose messages say what would be right.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

namespace levin::cli {

// Integers from `least` on that 63 bits hold.
CLI::Validator at_least(int64_t least);

// What a 64-bit unsigned number can be; strtoull would wrap and clamp.
CLI::Validator unsigned_64();

}  // namespace levin::cli
