// Counts the allocations of the test program.
#pragma once

#include <cstdint>

namespace levin::runtime::cpu {

// Calls of operator new so far, by any thread.
int64_t allocations();

}  // namespace levin::runtime::cpu
