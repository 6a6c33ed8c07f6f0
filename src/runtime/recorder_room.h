// How large a recorder of phases may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/phases.h"

namespace levin::runtime {

struct RecorderSize {
  int threads = 1;
  std::size_t phases = 0;
  std::size_t steps = 0;
};

// What its rings take.
double recorder_bytes(const RecorderSize& size);

// A recorder of that size. Throws Error when it would take more than half of `available` bytes
// (0: nobody tells): its rings are written at the start, so a machine that promises more than it
// has would end the process. `flags`: those that ask for so many records.
PhaseRecorder recorder_within(int64_t available, const RecorderSize& size,
                              const std::string& flags);

}  // namespace levin::runtime
