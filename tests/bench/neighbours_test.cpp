#include "bench/neighbours.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/thread_team.h"

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
  const Neighbours some = neighbours_in(4, {.busy = 3, .stolen = 0.5}, 2);
  EXPECT_DOUBLE_EQ(some.others, 0.25);
  EXPECT_DOUBLE_EQ(some.host, 0.125);
  // Clocks of different grain.
  EXPECT_EQ(neighbours_in(4, {.busy = 2, .stolen = 0}, 2.01).others, 0);
  EXPECT_EQ(neighbours_in(0, {.busy = 2, .stolen = 1}, 0).host, 0);
}

TEST(Neighbours, KnowTheWorkOfThisProcess) {
  const double before = own_cpu_seconds();
  while (own_cpu_seconds() - before < 0.02) continue;
  std::ifstream stat("/proc/stat");
  EXPECT_GT(core_seconds(stat, usable_cores(), 100).busy, 0);
}

TEST(Neighbours, AreNamedWhenTheyMatter) {
  EXPECT_FALSE((Neighbours{.others = 0.04, .host = 0}).noticeable());
  EXPECT_TRUE((Neighbours{.others = 0.34, .host = 0}).noticeable());
  EXPECT_TRUE((Neighbours{.others = 0, .host = 0.2}).noticeable());
  EXPECT_EQ(to_text(Neighbours{.others = 0.34, .host = 0.01}),
            "other processes took 34 % of the cores, the host 1 %");
  EXPECT_EQ(to_warning(Neighbours{.others = 0.04, .host = 0}), "");
  EXPECT_EQ(to_warning(Neighbours{.others = 0.34, .host = 0}),
            "THE MACHINE WAS BUSY: other processes took 34 % of the cores, the host 0 %.\n"
            "Do not trust the speeds; run again when it is quiet.\n");
  const auto json = to_json(Neighbours{.others = 0.34, .host = 0.01});
  EXPECT_TRUE(json.at("noticeable").get<bool>());
  EXPECT_EQ(json.at("other_processes_share"), 0.34);
  EXPECT_EQ(json.at("host_share"), 0.01);
}

TEST(Disturbance, IsOneStatementWhicheverShowsIt) {
  EXPECT_EQ(to_text(Disturbance{.neighbours = {.others = 0.04}, .noise = 1.2}), "");
  EXPECT_EQ(to_text(Disturbance{.neighbours = {.others = 0.34}, .noise = 1.1}),
            "THE MACHINE WAS BUSY: other processes took 34 % of the cores, the host 0 %; the same "
            "work took up to 1.1 times as long in another round.");
  EXPECT_EQ(to_text(Disturbance{.neighbours = {}, .noise = 2}),
            "THE MACHINE WAS BUSY: the same work took up to 2.0 times as long in another round.");
}

}  // namespace
}  // namespace levin::bench
