#include <gtest/gtest.h>

#include <cmath>

#include "bench/client/arrivals.h"

namespace levin::bench::client {
namespace {

// Mean gap and its standard deviation over the mean.
std::pair<double, double> gaps(double rate, double burstiness) {
  const std::vector<double> times = arrivals(20001, rate, burstiness, 7);
  const double mean = times.back() / 20000;
  double squares = 0;
  for (std::size_t i = 1; i < times.size(); ++i) {
    squares += std::pow(times[i] - times[i - 1] - mean, 2);
  }
  return {mean, std::sqrt(squares / 20000) / mean};
}

TEST(Arrivals, PoissonHasTheRateAndItsSpread) {
  const auto [mean, variation] = gaps(4, 1);
  EXPECT_NEAR(mean, 0.25, 0.01);  // four standard errors: 0.25 * 4 / sqrt(20000)
  EXPECT_NEAR(variation, 1.0, 0.05);
}

TEST(Arrivals, BurstinessIsTheShapeOfTheGaps) {
  EXPECT_NEAR(gaps(4, 0.25).second, 2, 0.15);  // 1 / sqrt(shape)
  EXPECT_NEAR(gaps(4, 100).second, 0.1, 0.01);
  EXPECT_NEAR(gaps(4, 100).first, 0.25, 0.001);
}

TEST(Arrivals, SeedsDecide) {
  EXPECT_EQ(arrivals(10, 1, 1, 3), arrivals(10, 1, 1, 3));
  EXPECT_NE(arrivals(10, 1, 1, 3), arrivals(10, 1, 1, 4));
  EXPECT_EQ(arrivals(1, 1, 1, 3).front(), 0);
  EXPECT_TRUE(arrivals(0, 1, 1, 3).empty());
}

}  // namespace
}  // namespace levin::bench::client
