#include "core/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace levin {
namespace {

// The number in a file; nothing when there is none, such as "max".
std::optional<int64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// What a control group may still take, its page cache included, which the kernel would drop.
std::optional<int64_t> left_in_group(const std::filesystem::path& folder, const char* limit_file,
                                     const char* usage_file) {
  const auto limit = number_in(folder / limit_file);
  const auto usage = number_in(folder / usage_file);
  if (!limit || !usage) return std::nullopt;
  int64_t reclaimable = 0;
  std::ifstream stat(folder / "memory.stat");
  std::string name;
  for (int64_t bytes = 0; stat >> name >> bytes;) {
    if (name == "inactive_file" || name == "active_file") reclaimable += bytes;
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
  // The process's own group is the root of what a container sees.
  const auto groups = root / "sys/fs/cgroup";
  for (const auto& left :
       {left_in_group(groups, "memory.max", "memory.current"),
        left_in_group(groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")}) {
    if (left && (available == 0 || *left < available)) available = *left;
  }
  return available;
}

std::string gigabytes(int64_t bytes) {
  return fmt::format("{:.2f} GB", static_cast<double>(bytes) * 1e-9);
}

}  // namespace levin
