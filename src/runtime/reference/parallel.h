// Dividing work over the team, when there is enough of it.
#pragma once

#include <cstdint>
#include <utility>

#include "core/thread_team.h"

namespace levin::runtime::reference {

// Multiply-adds below which waking the other threads costs more than it saves (about 15
// microseconds of work).
inline constexpr int64_t kWorthSharing = int64_t{1} << 16;

// part(thread, threads) on every thread of the team at the same time, or part(0, 1) when the
// `operations` of all parts together are few. What is computed must not depend on which.
template <typename Part>
void in_parallel(ThreadTeam& team, int64_t operations, Part&& part) {
  if (team.size() == 1 || operations < kWorthSharing) {
    part(0, 1);
    return;
  }
  auto on_thread = [&](int thread) { part(thread, team.size()); };
  team.run(on_thread);
}

// function(index) for 0 <= index < count, each of so many operations. The calls must be
// independent.
template <typename Function>
void parallel_for(ThreadTeam& team, int64_t count, int64_t operations_each, Function&& function) {
  in_parallel(team, count * operations_each, [&](int thread, int threads) {
    const Range range = share(count, thread, threads);
    for (int64_t i = range.begin; i < range.end; ++i) function(i);
  });
}

}  // namespace levin::runtime::reference
