// Names that come from outside: made printable for messages, mapped to their canonical spelling.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace levin::checkpoint {

// `text` cut to `max_length` bytes with control characters escaped, so that a hostile name can
// neither flood nor steer a terminal.
std::string printable(std::string_view text, std::size_t max_length = 160);

// The canonical spelling of a stored tensor or module name (see checkpoint.h).
std::string canonical_name(std::string_view stored);

// Every spelling that public checkpoints use for the module of canonical name `module`, the
// canonical one first: metadata written for any of them means the same module.
std::vector<std::string> spellings(std::string_view module);

}  // namespace levin::checkpoint
