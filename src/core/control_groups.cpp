#include "core/control_groups.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace levin {
namespace {

namespace fs = std::filesystem;

// Whether `controller` is among those of a line of /proc/self/cgroup, "cpu,cpuacct"; the unified
// hierarchy's line names none.
bool lists(std::string_view controllers, std::string_view controller) {
  while (!controllers.empty()) {
    const std::size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == controller) return true;
    if (comma == controllers.npos) return false;
    controllers.remove_prefix(comma + 1);
  }
  return controller.empty();
}

// This process's group in the hierarchy of `controller`, empty for the unified one: relative to its
// mount, empty for its root.
fs::path own_group(const fs::path& root, std::string_view controller) {
  std::ifstream file(root / "proc/self/cgroup");
  // 4:memory:/some/group
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const auto controllers = std::string_view(line).substr(first + 1, second - first - 1);
    if (controllers.empty() != controller.empty() || !lists(controllers, controller)) continue;
    return fs::path(line.substr(second + 1)).relative_path();
  }
  return {};
}

}  // namespace

std::vector<ControlGroup> control_groups(const fs::path& root, std::string_view controller) {
  std::vector<ControlGroup> groups;
  const auto add = [&](const fs::path& mount, fs::path group, bool unified) {
    while (true) {
      groups.push_back({mount / group, unified});
      if (group.empty()) return;
      group = group.parent_path();
    }
  };
  const fs::path mount = root / "sys/fs/cgroup";
  const fs::path unified = own_group(root, "");
  add(mount, unified, true);
  add(mount / "unified", unified, true);
  add(mount / controller, own_group(root, controller), false);
  return groups;
}

double processor_quota(const fs::path& root) {
  double quota = 0;
  for (const ControlGroup& group : control_groups(root, "cpu")) {
    // Microseconds of each period: "200000 100000" in one file, or a file each. "max" and -1 are no
    // limit.
    double time = 0;
    double period = 0;
    if (group.unified) {
      std::ifstream(group.folder / "cpu.max") >> time >> period;
    } else {
      std::ifstream(group.folder / "cpu.cfs_quota_us") >> time;
      std::ifstream(group.folder / "cpu.cfs_period_us") >> period;
    }
    if (time <= 0 || period <= 0) continue;
    if (quota == 0 || time / period < quota) quota = time / period;
  }
  return quota;
}

}  // namespace levin
