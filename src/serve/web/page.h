// The page at "/".
#pragma once

#include <string_view>

namespace levin::serve::web {

// HTML that needs nothing else.
std::string_view page();

}  // namespace levin::serve::web
