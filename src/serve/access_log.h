// One line in the log for each request.
#pragma once

#include "serve/generation.h"
#include "serve/http/exchange.h"

namespace levin::serve {

// A request that generates nothing.
void log_access(const http::Request& request, int status);
void log_access(const GenerationReport& report);

}  // namespace levin::serve
