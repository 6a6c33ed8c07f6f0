#include "core/memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "support/tiny_checkpoint.h"

namespace levin {
namespace {

class AvailableMemory : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    test::write_file(root_ / name, text);
  }
  int64_t available() const { return available_memory_bytes(root_.path()); }

 private:
  test::TempFolder root_;
};

constexpr const char* kMeminfo =
    "MemTotal:       24105600 kB\nMemFree:          100000 kB\nMemAvailable:   20000000 kB\n"
    "HugePages_Total:       0\nHugepagesize:       2048 kB\n";

TEST_F(AvailableMemory, IsUnknownWithoutFiles) {
  EXPECT_EQ(available(), 0);
}

TEST_F(AvailableMemory, IsWhatTheKernelSays) {
  write("proc/meminfo", kMeminfo);
  EXPECT_EQ(available(), int64_t{20000000} << 10);
}

TEST_F(AvailableMemory, IsWhatTheContainerHasLeft) {
  write("proc/meminfo", kMeminfo);
  write("sys/fs/cgroup/memory.max", "4000000000\n");
  write("sys/fs/cgroup/memory.current", "3000000000\n");
  EXPECT_EQ(available(), 1000000000);
  write("sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 500000000\nactive_file 200000000\n");
  EXPECT_EQ(available(), 1700000000);
  write("sys/fs/cgroup/memory.current", "9000000000\n");
  EXPECT_EQ(available(), 1);
}

TEST_F(AvailableMemory, HasNoLimitWhereTheGroupHasNone) {
  write("proc/meminfo", kMeminfo);
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/memory.current", "3000000000\n");
  EXPECT_EQ(available(), int64_t{20000000} << 10);
}

TEST_F(AvailableMemory, KnowsTheOlderControlGroups) {
  write("proc/meminfo", kMeminfo);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000000\n");
  EXPECT_EQ(available(), 1500000000);
}

// Of a unit of systemd, say: the root has no limit, the groups on the way to the process do.
TEST_F(AvailableMemory, HeedsEveryGroupAboveTheProcess) {
  write("proc/meminfo", kMeminfo);
  write("proc/self/cgroup", "0::/outer.slice/inner.scope\n");
  write("sys/fs/cgroup/outer.slice/memory.max", "4000000000\n");
  write("sys/fs/cgroup/outer.slice/memory.current", "1000000000\n");
  EXPECT_EQ(available(), 3000000000);
  write("sys/fs/cgroup/outer.slice/inner.scope/memory.max", "2000000000\n");
  write("sys/fs/cgroup/outer.slice/inner.scope/memory.current", "500000000\n");
  EXPECT_EQ(available(), 1500000000);
  write("sys/fs/cgroup/outer.slice/memory.current", "3900000000\n");
  EXPECT_EQ(available(), 100000000);
}

TEST_F(AvailableMemory, HeedsOlderGroupsAboveTheProcess) {
  write("proc/meminfo", kMeminfo);
  write("proc/self/cgroup", "9:name=systemd:/\n4:memory:/outer/inner\n3:cpuset:/other\n0::/\n");
  write("sys/fs/cgroup/memory/outer/memory.limit_in_bytes", "2000000000\n");
  write("sys/fs/cgroup/memory/outer/memory.usage_in_bytes", "900000000\n");
  // Only the sums are of the groups below, too.
  write("sys/fs/cgroup/memory/outer/memory.stat",
        "inactive_file 1\nactive_file 1\ntotal_inactive_file 300000000\n"
        "total_active_file 100000000\n");
  EXPECT_EQ(available(), 1500000000);
  write("sys/fs/cgroup/memory/outer/inner/memory.limit_in_bytes", "200000000\n");
  write("sys/fs/cgroup/memory/outer/inner/memory.usage_in_bytes", "50000000\n");
  EXPECT_EQ(available(), 150000000);
}

// The kernel tells a container its path on the host, where it sees nothing.
TEST_F(AvailableMemory, HeedsTheRootWhereTheGroupIsNotToBeSeen) {
  write("proc/meminfo", kMeminfo);
  write("proc/self/cgroup", "0::/system.slice/container.scope\n");
  write("sys/fs/cgroup/memory.max", "4000000000\n");
  write("sys/fs/cgroup/memory.current", "3000000000\n");
  EXPECT_EQ(available(), 1000000000);
}

TEST(AvailableMemoryOfThisMachine, IsKnown) {
  EXPECT_GT(available_memory_bytes(), int64_t{64} << 20);
}

}  // namespace
}  // namespace levin
