// What the device's memory is going to be used for, said before any of it is.
#pragma once

#include <cstddef>
#include <string>

namespace levin::runtime::cuda {

struct MemoryPlan {
  std::string device;
  std::size_t weights = 0;  // as repacked
  std::size_t state = 0;    // caches of all slots and work space
  std::size_t staging = 0;  // while weights are uploaded
  std::size_t free = 0;     // on the device now
};

// Logs the plan. Throws Error with exit code 3 when it does not fit.
void announce(const MemoryPlan& plan);

}  // namespace levin::runtime::cuda
