// The cheapest clock there is, for time stamps inside a step: the processor's cycle counter where
// it runs at one rate on all cores, the system's steady clock elsewhere.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#else
#include <chrono>
#endif

namespace levin {

inline uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// From ticks to nanoseconds of std::chrono::steady_clock. The rate is that between construction and
// the call, so it is good after some milliseconds.
class TickScale {
 public:
  TickScale();
  struct Line {
    uint64_t origin = 0;  // ticks
    double origin_ns = 0;
    double ns_per_tick = 1;
    double ns(uint64_t at) const {
      return origin_ns + static_cast<double>(static_cast<int64_t>(at - origin)) * ns_per_tick;
    }
    double seconds(uint64_t begin, uint64_t end) const {
      return static_cast<double>(static_cast<int64_t>(end - begin)) * ns_per_tick * 1e-9;
    }
  };
  Line line() const;

 private:
  uint64_t ticks_;
  int64_t ns_;
};

}  // namespace levin
