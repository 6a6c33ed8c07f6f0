// Documents lead somewhere: links between them are not broken, and no page is known to nobody.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {
namespace fs = std::filesystem;

const fs::path kSource = LEVIN_SOURCE_DIR;

std::vector<fs::path> documents() {
  std::vector<fs::path> found = {kSource / "README.md", kSource / "CONTRIBUTING.md"};
  for (const char* folder : {"docs", "configs", "evals", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kSource / folder)) {
      if (entry.path().extension() == ".md") found.push_back(entry.path());
    }
  }
  return found;
}

// What a document links to or shows beside it, without addresses elsewhere.
std::vector<fs::path> links_of(const fs::path& document) {
  std::ostringstream text;
  text << std::ifstream(document).rdbuf();
  const std::string content = text.str();
  const std::regex link(R"(\]\(([^)#\s]+)[^)]*\))");
  std::vector<fs::path> links;
  for (std::sregex_iterator match(content.begin(), content.end(), link), end; match != end;
       ++match) {
    const std::string target = (*match)[1];
    if (target.find("://") == std::string::npos) {
      links.push_back((document.parent_path() / target).lexically_normal());
    }
  }
  return links;
}

TEST(Documents, LinksAreNotBroken) {
  int links = 0;
  for (const fs::path& document : documents()) {
    for (const fs::path& link : links_of(document)) {
      EXPECT_TRUE(fs::exists(link)) << document << " links to " << link;
      ++links;
    }
  }
  EXPECT_GT(links, 15);  // the test saw them
}

TEST(Documents, EveryPageIsReachedFromTheReadme) {
  std::set<fs::path> reached = {kSource / "README.md"};
  std::vector<fs::path> open(reached.begin(), reached.end());
  while (!open.empty()) {
    const fs::path document = open.back();
    open.pop_back();
    for (const fs::path& link : links_of(document)) {
      if (link.extension() == ".md" && reached.insert(link).second) open.push_back(link);
    }
  }
  for (const fs::path& document : documents()) {
    EXPECT_TRUE(reached.contains(document)) << document;
  }
}

}  // namespace
