// Room on a disk, asked for before the work.
#pragma once

#include <cstdint>
#include <filesystem>

namespace levin {

// More than any file of results that levin writes when its work is done.
inline constexpr uint64_t kResultBytes = uint64_t{1} << 20;

// Throws Error (ExitCode::kMachine) when the disk of `path`, which need not exist yet, has fewer
// free bytes: better now than after hours.
void require_space(const std::filesystem::path& path, uint64_t bytes);

}  // namespace levin
