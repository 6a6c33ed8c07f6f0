#include "core/ticks.h"

#include <chrono>

namespace levin {
namespace {

int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

TickScale::TickScale() : ticks_(ticks()), ns_(now_ns()) {}

TickScale::Line TickScale::line() const {
  // Below this the two readings of the clock are too coarse for a rate.
  constexpr int64_t kLeastNs = 2'000'000;
  while (now_ns() - ns_ < kLeastNs) {
  }
  const uint64_t later = ticks();
  const int64_t elapsed = now_ns() - ns_;
  return {ticks_, static_cast<double>(ns_),
          static_cast<double>(elapsed) / static_cast<double>(later - ticks_)};
}

}  // namespace levin
