// What every block of the reference runtime works with.
#pragma once

#include <cstdint>
#include <span>

#include "core/thread_team.h"
#include "model/config.h"
#include "runtime/reference/linear.h"
#include "runtime/runtime.h"

namespace levin::runtime::reference {

struct Context {
  const model::Config& config;
  const Options& options;
  ThreadTeam& team;
  Linears& linears;
  int64_t max_rows;  // most rows of one pass through a block
};

// Consecutive tokens of one sequence among the rows of a pass.
struct Segment {
  int slot = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t position = 0;  // of the first row's token in its sequence
};

}  // namespace levin::runtime::reference
