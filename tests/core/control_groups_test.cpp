#include "core/control_groups.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "support/tiny_checkpoint.h"

namespace levin {
namespace {

class ProcessorQuota : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    test::write_file(root_ / name, text);
  }
  double quota() const { return processor_quota(root_.path()); }

 private:
  test::TempFolder root_;
};

TEST_F(ProcessorQuota, NoneWithoutFiles) {
  EXPECT_EQ(quota(), 0);
}

TEST_F(ProcessorQuota, OfAContainer) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 0);
  write("sys/fs/cgroup/cpu.max", "250000 100000\n");
  EXPECT_EQ(quota(), 2.5);
}

// The path is one of the host, which the container does not see.
TEST_F(ProcessorQuota, OfAContainerWithThePathOfItsHost) {
  write("proc/self/cgroup", "0::/system.slice/docker-1234.scope\n");
  write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(quota(), 4);
}

TEST_F(ProcessorQuota, IsTheLeastOfAllAbove) {
  write("proc/self/cgroup", "0::/outer.slice/inner.scope\n");
  write("sys/fs/cgroup/outer.slice/cpu.max", "300000 100000\n");
  EXPECT_EQ(quota(), 3);
  write("sys/fs/cgroup/outer.slice/inner.scope/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota(), 0.5);
  write("sys/fs/cgroup/outer.slice/inner.scope/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 3);
}

TEST_F(ProcessorQuota, OfTheOlderHierarchies) {
  write("proc/self/cgroup", "5:cpuset:/elsewhere\n4:cpu,cpuacct:/outer\n0::/\n");
  write("sys/fs/cgroup/cpu/outer/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu/outer/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(quota(), 0);
  write("sys/fs/cgroup/cpu/outer/cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(quota(), 1.5);
}

TEST_F(ProcessorQuota, NoneWhereTheFileSaysSomethingElse) {
  for (const char* text : {"", "\n", "100000\n", "x y\n", "0 0\n", "-5 100000\n", "100000 0\n"}) {
    write("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(quota(), 0) << text;
  }
}

}  // namespace
}  // namespace levin
