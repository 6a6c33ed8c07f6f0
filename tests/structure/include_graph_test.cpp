// The direction in which data flows is a rule, not a drawing: a room includes only the rooms below
// it (docs/architecture.md), and no source file outgrows one sitting.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {
namespace fs = std::filesystem;

// Which rooms a room may use directly; what those use is allowed too.
const std::map<std::string, std::set<std::string>> kUses = {
    {"core", {}},
    {"codec", {"core"}},
    {"checkpoint", {"core"}},
    {"text", {"core"}},
    {"model", {"checkpoint", "codec"}},
    {"runtime", {"model"}},
    {"engine", {"runtime", "text"}},
    {"quantize", {"checkpoint", "codec", "model", "engine"}},
    {"evaluate", {"engine"}},
    {"bench", {"engine", "evaluate", "quantize"}},
    {"serve", {"engine"}},
    {"cli", {"bench", "serve"}},
};

std::set<std::string> reachable(const std::string& room) {
  std::set<std::string> seen = {room};
  std::vector<std::string> open = {room};
  while (!open.empty()) {
    const std::string next = open.back();
    open.pop_back();
    for (const std::string& used : kUses.at(next)) {
      if (seen.insert(used).second) open.push_back(used);
    }
  }
  return seen;
}

struct Source {
  fs::path path;
  std::string room;
  std::vector<std::string> lines;
};

std::vector<Source> sources_under(const fs::path& root) {
  const std::set<std::string> extensions = {".h", ".cpp", ".cu", ".cuh"};
  std::vector<Source> sources;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file() || !extensions.contains(entry.path().extension())) continue;
    const fs::path relative = fs::relative(entry.path(), root);
    Source source{relative, relative.begin()->string(), {}};
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) source.lines.push_back(line);
    sources.push_back(std::move(source));
  }
  return sources;
}

std::vector<Source> product_sources() {
  return sources_under(fs::path(LEVIN_SOURCE_DIR) / "src");
}

TEST(IncludeGraph, RoomsUseOnlyTheRoomsBelowThem) {
  int includes = 0;
  for (const Source& source : product_sources()) {
    if (source.room == "main.cpp") continue;
    ASSERT_TRUE(kUses.contains(source.room)) << source.path << " is in a room nobody declared";
    const std::set<std::string> allowed = reachable(source.room);
    for (const std::string& line : source.lines) {
      const std::string prefix = "#include \"";
      if (!line.starts_with(prefix)) continue;
      const std::string included = line.substr(prefix.size(), line.find('/') - prefix.size());
      EXPECT_TRUE(allowed.contains(included)) << source.path << ": " << line;
      ++includes;
    }
  }
  EXPECT_GT(includes, 50);  // the test saw the tree
}

TEST(IncludeGraph, NoRoomReachesItself) {
  for (const auto& [room, uses] : kUses) {
    for (const std::string& used : uses) {
      EXPECT_FALSE(reachable(used).contains(room)) << room << " <-> " << used;
    }
  }
}

TEST(SourceFiles, NoneOutgrowsOneSitting) {
  constexpr std::size_t kMaxLines = 600;
  for (const Source& source : product_sources()) {
    EXPECT_LE(source.lines.size(), kMaxLines) << source.path;
  }
}

TEST(SourceFiles, HeadersStartWithTheirPurpose) {
  for (const Source& source : product_sources()) {
    if (source.path.extension() != ".h" && source.path.extension() != ".cuh") continue;
    ASSERT_FALSE(source.lines.empty()) << source.path;
    EXPECT_TRUE(source.lines.front().starts_with("// ")) << source.path;
  }
}

}  // namespace
