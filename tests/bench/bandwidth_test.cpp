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

// Each of a thousand threads with a page of its own would be gigabytes.
TEST(Bandwidth, SharesAreNoMoreThanThereIs) {
  constexpr std::size_t kPage = std::size_t{2} << 20;
  EXPECT_EQ(share_of(3 * kPage, 2, 0), 2 * kPage);
  EXPECT_EQ(share_of(1, 1024, 0), kPage);
  const std::size_t share = share_of(100 * kPage, 1024, 200 * int64_t{kPage});
  EXPECT_LE(share * 1024, 100 * kPage);
  EXPECT_GT(share * 1024, 95 * kPage);
  EXPECT_GT(share_of(1, 1024, 1), 0U);
}

TEST(Bandwidth, RoundsUpSmallBuffers) {
  const Bandwidth small = measure_read_bandwidth({.threads = 2, .bytes = 1, .passes = 1});
  EXPECT_EQ(small.bytes, std::size_t{4} << 20);
}

}  // namespace
}  // namespace levin::bench
