#include "bench/spread.h"

#include <gtest/gtest.h>

#include <vector>

namespace levin::bench {
namespace {

TEST(Spread, MedianAndEnds) {
  const Spread spread = spread_of(std::vector<double>{5, 1, 3});
  EXPECT_EQ(spread.median, 3);
  EXPECT_EQ(spread.min, 1);
  EXPECT_EQ(spread.max, 5);
  EXPECT_EQ(spread_of({}).median, 0);
}

// A machine that slows down fourfold in one round changes no ratio.
TEST(PairedRatio, CancelsWhatBothSuffer) {
  const std::vector<double> slow = {2, 8, 2.2};
  const std::vector<double> fast = {1, 4, 1.1};
  const Spread ratio = paired_ratio(slow, fast);
  EXPECT_DOUBLE_EQ(ratio.median, 2);
  EXPECT_DOUBLE_EQ(ratio.min, 2);
  EXPECT_DOUBLE_EQ(ratio.max, 2);
}

}  // namespace
}  // namespace levin::bench
