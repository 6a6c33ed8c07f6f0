// Counted nouns in messages: "1 round", "3 rounds".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace levin {

// `count` and the noun in the number that goes with it. `plural` where an s at the end of `noun`
// does not make it: "matrices".
std::string counted(int64_t count, std::string_view noun, std::string_view plural = {});
// The same for sizes of containers.
std::string counted(std::size_t count, std::string_view noun, std::string_view plural = {});

}  // namespace levin
