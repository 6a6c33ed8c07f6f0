// What was probably meant by a word that means nothing.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace levin::cli {

// The candidate that takes the fewest insertions, deletions, replacements and swaps of neighbours
// to reach, at most one for every three characters of `word`; the first of several. Empty when none
// is that near.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace levin::cli
