#include "core/thread_team.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "core/progress.h"

namespace levin {
namespace {

TEST(ThreadTeamTest, EveryThreadRunsOnceEachTime) {
  for (const int size : {1, 2, 3, 7}) {
    ThreadTeam team(size);
    std::vector<int> runs(static_cast<std::size_t>(size));
    for (int round = 0; round < 200; ++round) {
      team.run([&](int thread) { ++runs[static_cast<std::size_t>(thread)]; });
    }
    for (const int count : runs) EXPECT_EQ(count, 200);
  }
}

// In a child: the limit would hold for the tests after this one.
TEST(ThreadTeamTest, ThreadsThatCannotStartAreAnError) {
  int64_t pages = 0;  // of address space in use: terabytes under a sanitizer
  ASSERT_TRUE(std::ifstream("/proc/self/statm") >> pages);
  const pid_t child = ::fork();
  if (child == 0) {
    // Stacks of 1 GiB in 8 GiB: some threads start, and what is too little for one more stack
    // is enough for a sanitizer.
    ::pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, std::size_t{1} << 30);
    ::pthread_setattr_default_np(&attributes);
    const auto most = static_cast<::rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + (int64_t{8} << 30));
    const ::rlimit limit{most, most};
    ::setrlimit(RLIMIT_AS, &limit);
    try {
      const ThreadTeam team(1024);
    } catch (const Error& error) {
      ::_exit(static_cast<int>(error.exit_code()));
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::kMachine));
}

TEST(ThreadTeamTest, SizesBelowOneBecomeOne) {
  EXPECT_EQ(ThreadTeam(0).size(), 1);
  EXPECT_EQ(ThreadTeam(-3).size(), 1);
}

TEST(ThreadTeamTest, BarrierSeparatesPhases) {
  ThreadTeam team(4);
  std::atomic<int> arrived{0};
  std::atomic<int> wrong{0};
  team.run([&](int) {
    for (int phase = 1; phase <= 100; ++phase) {
      ++arrived;
      team.barrier();
      if (arrived.load() != 4 * phase) ++wrong;
      team.barrier();
    }
  });
  EXPECT_EQ(wrong.load(), 0);
}

// Longer than anybody spins, so that the others sleep at the barrier and at the end.
TEST(ThreadTeamTest, WhoeverIsLateWakesTheOthers) {
  ThreadTeam team(3);
  std::atomic<int> arrived{0};
  std::atomic<int> wrong{0};
  for (int round = 0; round < 20; ++round) {
    team.run([&](int thread) {
      for (int phase = 0; phase < 6; ++phase) {
        if (phase % 3 == thread) std::this_thread::sleep_for(std::chrono::microseconds{400});
        ++arrived;
        team.barrier();
        if (arrived.load() < 3 * (6 * round + phase + 1)) ++wrong;
      }
      if (thread == round % 3) std::this_thread::sleep_for(std::chrono::microseconds{400});
    });
  }
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(arrived.load(), 3 * 6 * 20);
}

// A server between requests. Threads that think themselves crowded take several times as long.
TEST(ThreadTeamTest, ACallerThatSleepsBetweenRunsIsNotCrowded) {
  ThreadTeam team(2);
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds{5}); };
  int crowded = 0;
  constexpr int kTries = 40;  // other programs may crowd some of them
  for (int i = 0; i < kTries; ++i) {
    pause();
    team.run([](int) {});
    crowded += threads_crowded() ? 1 : 0;
  }
  EXPECT_LT(crowded, kTries);
}

TEST(ThreadTeamTest, ResultsAreVisibleAfterRun) {
  ThreadTeam team(3);
  for (int round = 0; round < 500; ++round) {
    std::vector<int> values(3, 0);
    team.run([&](int thread) { values[static_cast<std::size_t>(thread)] = round; });
    for (const int value : values) ASSERT_EQ(value, round);
  }
}

TEST(ThreadTeamTest, PinnedThreadsStayOnCoresOfTheirOwn) {
  const std::vector<int> cores = usable_cores();
  ASSERT_FALSE(cores.empty());
  for (const bool pinned : {true, false}) {
    ThreadTeam team(3, pinned);
    std::vector<std::vector<int>> allowed(3);
    team.run([&](int thread) { allowed[static_cast<std::size_t>(thread)] = usable_cores(); });
    EXPECT_EQ(allowed[0], cores);  // the caller's affinity is not the team's
    for (int thread = 1; thread < 3; ++thread) {
      const std::vector<int> own = {core_of(thread, cores)};
      EXPECT_EQ(allowed[static_cast<std::size_t>(thread)], pinned ? own : cores) << thread;
    }
  }
  EXPECT_EQ(usable_cores(), cores);  // nor is it afterwards
}

TEST(Cores, OfPinnedThreadsAreAllDifferentWhileThereAreAny) {
  EXPECT_EQ(core_of(1, {2, 5, 7}), 5);
  EXPECT_EQ(core_of(2, {2, 5, 7}), 7);
  EXPECT_EQ(core_of(3, {2, 5, 7}), 2);
  EXPECT_EQ(core_of(1, {4}), 4);
}

TEST(Share, PartitionsEveryCount) {
  for (const int64_t count : {0, 1, 5, 16, 17, 1000}) {
    for (const int parts : {1, 2, 3, 8}) {
      for (const int64_t grain : {1, 4, 16}) {
        int64_t next = 0;
        for (int part = 0; part < parts; ++part) {
          const Range range = share(count, part, parts, grain);
          EXPECT_EQ(range.begin, next);
          EXPECT_LE(range.begin, range.end);
          EXPECT_TRUE(range.begin % grain == 0 || range.begin == count);
          EXPECT_LE(range.end - range.begin, count / parts + 2 * grain);
          next = range.end;
        }
        EXPECT_EQ(next, count);
      }
    }
  }
}

TEST(Cores, AtLeastOne) {
  EXPECT_GE(available_cores(), 1);
}

// Known answers of Philox4x32-10 (Random123's kat_vectors).
TEST(PhiloxTest, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox(0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, ~uint64_t{0}, 10, ~uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 10, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, UniformIsNeverZeroAndAtMostOne) {
  EXPECT_GT(uniform_open_closed(0, 0), 0.0);
  EXPECT_EQ(uniform_open_closed(~0u, ~0u), 1.0);
  double sum = 0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const auto words = philox(1, i);
    sum += uniform_open_closed(words[0], words[1]);
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
}

TEST(ProgressTest, QuickWorkIsSilent) {
  ::testing::internal::CaptureStderr();
  {
    Progress progress("quick", 100, "items");
    for (int i = 0; i < 100; ++i) progress.advance(1);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace levin
