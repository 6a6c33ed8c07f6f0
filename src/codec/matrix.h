// What the matrix forms of all encoders share: size checks, the largest magnitude, rows divided
// over a team.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/thread_team.h"

namespace levin::codec {

// Throws Error unless `elements` == rows * cols and cols is a positive multiple of `block`.
void check_matrix(std::size_t elements, int64_t rows, int64_t cols, int64_t block,
                  std::string_view format);

// Largest |value|; NaN when there is a NaN, 0 for nothing.
float absolute_max(std::span<const float> values);

// Calls `function(row)` for every row, contiguous shares on the threads of `team` (or all on this
// thread when there is none). `function` must not throw.
template <typename Function>
void for_each_row(int64_t rows, ThreadTeam* team, Function&& function) {
  const auto work = [&](int thread) {
    const Range range = share(rows, thread, team == nullptr ? 1 : team->size());
    for (int64_t row = range.begin; row < range.end; ++row) function(row);
  };
  if (team == nullptr) {
    work(0);
  } else {
    team->run(work);
  }
}

}  // namespace levin::codec
