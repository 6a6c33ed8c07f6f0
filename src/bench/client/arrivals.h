// When the requests of an open loop arrive.
#pragma once

#include <cstdint>
#include <vector>

namespace levin::bench::client {

// Seconds from the start of `count` arrivals, the first at 0, `rate` a second on average. Gaps are
// gamma distributed with shape `burstiness`: 1 is a Poisson process, less comes in bursts, more
// evenly; as vLLM has it. The same seed gives the same arrivals. `rate` and `burstiness` > 0.
std::vector<double> arrivals(int64_t count, double rate, double burstiness, uint64_t seed);

}  // namespace levin::bench::client
