#include "bench/neighbours.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <sstream>
#include <thread>

namespace levin::bench {
namespace {

constexpr const char* kStat =
    "cpu  600 60 300 9000 90 30 30 120 0 0\n"
    "cpu0 100 10 50 1000 10 5 5 20 0 0\n"
    "cpu1 200 20 100 2000 20 10 10 40 0 0\n"
    "cpu11 300 30 150 6000 60 15 15 60 0 0\n"
    "intr 123 4 5\nctxt 9\n";

TEST(Neighbours, AddUpTheCoresAskedFor) {
  std::istringstream one(kStat);
  const CoreSeconds first = core_seconds(one, {1}, 100);
  EXPECT_DOUBLE_EQ(first.busy, 3.4);
  EXPECT_DOUBLE_EQ(first.stolen, 0.4);
  std::istringstream two(kStat);
  const CoreSeconds both = core_seconds(two, {0, 11}, 100);
  EXPECT_DOUBLE_EQ(both.busy, 1.7 + 5.1);
  EXPECT_DOUBLE_EQ(both.stolen, 0.2 + 0.6);
  std::istringstream none("nothing of the kind\n");
  EXPECT_EQ(core_seconds(none, {0}, 100).busy, 0);
}

// What this process does itself is nobody else's work.
TEST(Neighbours, DoNotCountThisProcess) {
  std::atomic<bool> stop{false};
  const NeighbourWatch watch;
  std::thread worker([&] {
    while (!stop) continue;
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  while (std::chrono::steady_clock::now() < end) continue;
  const Neighbours busy = watch.so_far();
  stop = true;
  worker.join();
  EXPECT_GE(busy.others, 0);
  EXPECT_LE(busy.others + busy.host, 1.05);
}

TEST(Neighbours, AreNamedWhenTheyMatter) {
  EXPECT_FALSE((Neighbours{.others = 0.04, .host = 0}).noticeable());
  EXPECT_TRUE((Neighbours{.others = 0.34, .host = 0}).noticeable());
  EXPECT_TRUE((Neighbours{.others = 0, .host = 0.2}).noticeable());
  EXPECT_EQ(to_text(Neighbours{.others = 0.34, .host = 0.01}),
            "other processes took 34 % of the cores, the host 1 %");
}

}  // namespace
}  // namespace levin::bench
