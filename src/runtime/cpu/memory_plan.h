// What the machine's memory is going to be used for, said before most of it is.
#pragma once

#include <cstdint>

namespace levin::runtime::cpu {

struct MemoryPlan {
  int64_t weights = 0;    // as repacked
  int64_t rest = 0;       // caches and work space, which take what they need when they need it
  int64_t available = 0;  // 0: not known
};

// Logs a plan of more than 1 GiB, and a warning when caches could outgrow the machine. Throws Error
// (ExitCode::kMachine) when the weights alone do not fit.
void announce(const MemoryPlan& plan);

}  // namespace levin::runtime::cpu
