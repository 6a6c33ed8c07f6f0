// Python's string methods on UTF-8, shared by filters and methods.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/budget.h"

namespace levin::text::jinja {

// str.strip(), lstrip() and rstrip(): of white space, or of the characters in `characters`.
std::string_view strip(std::string_view text, std::optional<std::string_view> characters,
                       bool left = true, bool right = true);

// str.split(separator, maxsplit), and rsplit with `from_right`; at white space without a separator.
// A negative maxsplit is none. The separator is not empty.
std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t maxsplit,
                                    bool from_right);

// str.splitlines(): line ends are those of Python, "\r\n" is one.
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);

// str.count(): occurrences that do not overlap.
std::size_t count_occurrences(std::string_view text, std::string_view part);
// str.replace(); a negative count replaces all. Charges the budget for the result.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t count, Budget& budget);

std::string capitalize(std::string_view text);
// str.title(): a word begins behind every character without case.
std::string title(std::string_view text);
// Jinja's filter title: a word begins behind white space and -({[<.
std::string title_words(std::string_view text);

}  // namespace levin::text::jinja
