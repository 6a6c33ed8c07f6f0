// The page at "/": a chat with the served model and gauges drawn from /metrics.
#pragma once

#include <string_view>

namespace levin::serve::web {

// The bytes of page.html, compiled in by embed_page.cmake. HTML that needs nothing else: style and
// script are inline and named by their hashes in its Content-Security-Policy.
std::string_view page();

}  // namespace levin::serve::web
