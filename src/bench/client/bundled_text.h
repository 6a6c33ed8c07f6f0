// Text for prompts that is part of the program: the beginnings of evals/tiny/text/*.jsonl.
#pragma once

#include <string_view>

namespace levin::bench::client {

// Lines of JSON with "text"; the last one may be cut off.
std::string_view bundled_prose();
std::string_view bundled_code();

}  // namespace levin::bench::client
