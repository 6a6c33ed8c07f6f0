#include "core/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "core/control_groups.h"

namespace levin {
namespace {

// The number in a file; nothing when there is none, such as "max".
std::optional<int64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

namespace fs = std::filesystem;

// Files of one of the two kinds of control groups.
struct GroupFiles {
  const char* limit;
  const char* usage;
  // In memory.stat, of the group and those below: page cache, which the kernel would drop.
  const char* inactive_cache;
  const char* active_cache;
};
constexpr GroupFiles kUnified = {"memory.max", "memory.current", "inactive_file", "active_file"};
constexpr GroupFiles kOlder = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file", "total_active_file"};

// What a control group may still take; nothing when it has no limit.
std::optional<int64_t> left_in_group(const fs::path& folder, const GroupFiles& files) {
  const auto limit = number_in(folder / files.limit);
  const auto usage = number_in(folder / files.usage);
  if (!limit || !usage) return std::nullopt;
  int64_t reclaimable = 0;
  std::ifstream stat(folder / "memory.stat");
  std::string name;
  for (int64_t bytes = 0; stat >> name >> bytes;) {
    if (name == files.inactive_cache || name == files.active_cache) reclaimable += bytes;
  }
  return std::max<int64_t>(*limit - *usage + reclaimable, 1);
}

}  // namespace

int64_t available_memory_bytes(const std::filesystem::path& root) {
  int64_t available = 0;
  std::ifstream file(root / "proc/meminfo");
  std::string name;
  std::string rest;
  for (int64_t kibibytes = 0; file >> name >> kibibytes && std::getline(file, rest);) {
    if (name == "MemAvailable:") available = kibibytes << 10;
  }
  for (const ControlGroup& group : control_groups(root, "memory")) {
    const auto left = left_in_group(group.folder, group.unified ? kUnified : kOlder);
    if (left && (available == 0 || *left < available)) available = *left;
  }
  return available;
}

std::string gigabytes(int64_t bytes) {
  return fmt::format("{:.2f} GB", static_cast<double>(bytes) * 1e-9);
}

}  // namespace levin
