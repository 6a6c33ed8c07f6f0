// The formats of JSON schema's `format`, as patterns.
#pragma once

#include <string>
#include <string_view>

namespace levin::text::grammar {

// A pattern for regex.h that lets only texts of the format through, though not all of them; empty
// for a format that is not known.
std::string pattern_of_format(std::string_view format);

}  // namespace levin::text::grammar
