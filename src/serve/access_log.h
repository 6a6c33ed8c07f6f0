// One line in the log for each request.
#pragma once

#include <string>
#include <string_view>

#include "serve/generation.h"
#include "serve/http/exchange.h"

namespace levin::serve {

// A request that generates nothing.
void log_access(const http::Request& request, int status);
void log_access(const GenerationReport& report);

// `text` of a client as a log or a header may hold it: at most `most` bytes of visible ASCII,
// others escaped.
std::string printable(std::string_view text, std::size_t most = 200);

}  // namespace levin::serve
