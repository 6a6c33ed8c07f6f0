// The control groups of this process: what a container, or a unit of systemd, may use.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace levin {

struct ControlGroup {
  std::filesystem::path folder;
  bool unified;  // else of the older hierarchy of one controller
};

// The groups that limit this process's use of `controller` ("cpu", "memory"), of both kinds of
// hierarchies: its own, and all above it, since a group keeps their limits. Folders may be missing:
// what a container sees begins with its own group, whatever path the kernel tells.
// `root`: of /proc and /sys.
std::vector<ControlGroup> control_groups(const std::filesystem::path& root,
                                         std::string_view controller);

// Processors' worth of time that this process may use, by the quotas of its groups; 0 without one.
double processor_quota(const std::filesystem::path& root = "/");

}  // namespace levin
