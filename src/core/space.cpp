#include "core/space.h"

#include <fmt/format.h>

#include "core/error.h"

namespace levin {
namespace fs = std::filesystem;

void require_space(const fs::path& path, uint64_t bytes) {
  std::error_code error;
  fs::path present = fs::absolute(path, error);
  while (present.has_relative_path() && !fs::exists(present, error)) {
    present = present.parent_path();
  }
  const fs::space_info space = fs::space(present, error);
  if (error || space.available >= bytes) return;
  throw Error({.what = "not enough space on the disk",
               .where = path.string(),
               .expected = fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6),
               .found = fmt::format("{:.1f} MB free", static_cast<double>(space.available) / 1e6),
               .hint = "free some space and run the same command again",
               .exit_code = ExitCode::kMachine});
}

}  // namespace levin
