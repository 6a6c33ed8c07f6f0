// Text of clients for one line of ASCII.
#pragma once

#include <string>
#include <string_view>

namespace levin::serve::http {

// `text` of a client as a log or a header may hold it: at most `most` bytes of visible ASCII,
// others escaped.
std::string printable(std::string_view text, std::size_t most = 200);

}  // namespace levin::serve::http
