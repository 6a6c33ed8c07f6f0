// What contrib/ says about the server is true of it.
#include <algorithm>
#include <cstdio>
#include <regex>
#include <set>
#include <sstream>

#include "core/files.h"
#include "live_server.h"

namespace levin::serve::testing {
namespace {

std::string contrib(const char* name) {
  return read_text(std::filesystem::path(LEVIN_SOURCE_DIR) / "contrib" / name);
}

TEST(Contrib, TheDashboardShowsMetricsThatThereAre) {
  const auto engine = load_tiny(1);
  const LiveServer server(*engine);
  server.post("/v1/chat/completions", chat("Hi", {{"max_tokens", 2}}));
  const std::string metrics = server.get("/metrics").body;
  const Json dashboard = Json::parse(contrib("grafana_dashboard.json"));
  std::set<std::string> names;
  std::set<int> panels;
  const std::regex name(R"re(__name__="\$\{prefix\}([a-z_]+)")re");
  for (const Json& panel : dashboard["panels"]) {
    EXPECT_TRUE(panels.insert(panel["id"].get<int>()).second);
    ASSERT_FALSE(panel["targets"].empty());
    for (const Json& target : panel["targets"]) {
      const std::string expression = target["expr"];
      std::sregex_iterator at(expression.begin(), expression.end(), name);
      EXPECT_NE(at, std::sregex_iterator()) << expression;
      for (; at != std::sregex_iterator(); ++at) names.insert((*at)[1]);
      EXPECT_EQ(std::count(expression.begin(), expression.end(), '('),
                std::count(expression.begin(), expression.end(), ')'))
          << expression;
    }
  }
  EXPECT_GT(names.size(), 10U);
  for (const std::string& each : names) {
    EXPECT_NE(metrics.find("\nlevin:" + each + "{"), std::string::npos) << each;
  }
}

// Flags of the unit and the image are flags of the program.
TEST(Contrib, CommandLinesHaveFlagsThatThereAre) {
  std::string help;
  FILE* pipe = ::popen(LEVIN_BINARY " serve --help", "r");
  ASSERT_NE(pipe, nullptr);
  char bytes[4096];
  while (const std::size_t got = std::fread(bytes, 1, sizeof(bytes), pipe)) help.append(bytes, got);
  EXPECT_EQ(::pclose(pipe), 0);
  const std::regex flag("--[a-z-]+");
  int flags = 0;
  for (const auto& [file, key] :
       {std::pair{"levin.service", "ExecStart="}, std::pair{"Dockerfile", "ENTRYPOINT "}}) {
    const std::string text = contrib(file);
    const std::size_t begin = text.find(key);
    ASSERT_NE(begin, text.npos) << file;
    const std::string line = text.substr(begin, text.find('\n', begin) - begin);
    for (std::sregex_iterator at(line.begin(), line.end(), flag); at != std::sregex_iterator();
         ++at) {
      EXPECT_NE(help.find(at->str() + " "), std::string::npos) << file << ": " << at->str();
      ++flags;
    }
  }
  EXPECT_GE(flags, 3);
}

// CMake refuses a build folder that was made elsewhere.
TEST(Contrib, TheImageIsNotBuiltInFoldersOfTheHost) {
  const std::filesystem::path root(LEVIN_SOURCE_DIR);
  std::istringstream tracked_not(read_text(root / ".gitignore"));
  const std::string left_out = "\n" + read_text(root / ".dockerignore");
  int folders = 0;
  for (std::string line; std::getline(tracked_not, line);) {
    if (!line.starts_with('/') || !line.ends_with('/')) continue;
    ++folders;
    const std::string name = line.substr(1, line.size() - 2);
    EXPECT_NE(left_out.find("\n" + name + "\n"), std::string::npos) << name;
  }
  EXPECT_GE(folders, 2);
}

}  // namespace
}  // namespace levin::serve::testing
