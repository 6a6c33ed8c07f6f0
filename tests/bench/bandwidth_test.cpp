#include "bench/bandwidth.h"

#include <gtest/gtest.h>

namespace levin::bench {
namespace {

TEST(Bandwidth, IsPlausible) {
  const Bandwidth one = measure_read_bandwidth({.threads = 1, .bytes = 64 << 20, .passes = 3});
  EXPECT_EQ(one.threads, 1);
  EXPECT_EQ(one.bytes, std::size_t{64} << 20);
  EXPECT_GE(one.streams, 1);
  // No machine that runs this reads slower than an old disk or faster than a cache line per cycle.
  EXPECT_GT(one.gb_per_s.median, 0.2);
  EXPECT_LT(one.gb_per_s.median, 500);
  EXPECT_LE(one.gb_per_s.min, one.gb_per_s.median);
  EXPECT_GE(one.gb_per_s.max, one.gb_per_s.median);
}

TEST(Bandwidth, LeavesHalfOfTheMemoryAlone) {
  EXPECT_EQ(affordable(1000, 0), 1000u);
  EXPECT_EQ(affordable(1000, 2000), 1000u);
  EXPECT_EQ(affordable(1000, 900), 450u);
}

TEST(Bandwidth, RoundsUpSmallBuffers) {
  const Bandwidth small = measure_read_bandwidth({.threads = 2, .bytes = 1, .passes = 1});
  EXPECT_EQ(small.bytes, std::size_t{4} << 20);
}

}  // namespace
}  // namespace levin::bench
