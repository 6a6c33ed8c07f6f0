#include "bench/client/arrivals.h"

#include <random>

namespace levin::bench::client {

std::vector<double> arrivals(int64_t count, double rate, double burstiness, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::gamma_distribution<double> gap(burstiness, 1 / (rate * burstiness));
  std::vector<double> times;
  double now = 0;
  for (int64_t i = 0; i < count; ++i) {
    times.push_back(now);
    now += gap(random);
  }
  return times;
}

}  // namespace levin::bench::client
