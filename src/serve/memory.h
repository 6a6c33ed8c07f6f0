// What the machine has left.
#pragma once

#include <cstdint>

namespace levin::serve {

// MemAvailable of /proc/meminfo; 0 when it is not told.
int64_t available_memory_bytes();

}  // namespace levin::serve
