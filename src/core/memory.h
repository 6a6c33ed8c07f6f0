// What the machine has left.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace levin {

// Bytes that this process can take without swapping: MemAvailable of /proc/meminfo, or less where
// the limits of its control group and those above it leave less (containers, systemd's units). 0
// when nobody tells, else at least 1.
// `root`: of /proc and /sys.
int64_t available_memory_bytes(const std::filesystem::path& root = "/");

// "18.42 GB"
std::string gigabytes(int64_t bytes);

}  // namespace levin
