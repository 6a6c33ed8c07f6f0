// What documents show behind "$ levin" is what the program prints.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {
namespace fs = std::filesystem;

const fs::path kSource = LEVIN_SOURCE_DIR;

struct Shown {
  std::string where;
  std::string commands;            // a line for each
  std::vector<std::string> lines;  // of the output, in order; "..." stands for any others
};

// The fenced blocks of a document that begin with a command.
std::vector<Shown> shown_in(const fs::path& document) {
  std::ifstream file(document);
  std::vector<Shown> blocks;
  bool fenced = false;
  bool shown = false;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.starts_with("```")) {
      fenced = !fenced;
      shown = false;
    } else if (fenced && line.starts_with("$ ")) {
      if (!shown) blocks.push_back({fmt::format("{}:{}", document.string(), number), {}, {}});
      shown = true;
      blocks.back().commands += line.substr(2) + '\n';
    } else if (shown && line != "...") {
      blocks.back().lines.push_back(line);
    }
  }
  return blocks;
}

// Output and errors of the commands, run in `folder`.
std::string run(const std::string& commands, const fs::path& folder) {
  std::ofstream(folder / "commands") << "levin() { '" LEVIN_BINARY "' \"$@\"; }\n" << commands;
  FILE* pipe = ::popen(fmt::format("cd '{}' && bash commands 2>&1", folder.string()).c_str(), "r");
  std::string output;
  std::array<char, 4096> bytes;
  while (const std::size_t got = std::fread(bytes.data(), 1, bytes.size(), pipe)) {
    output.append(bytes.data(), got);
  }
  ::pclose(pipe);
  return output;
}

TEST(Documents, ShowWhatTheProgramPrints) {
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("documents-{}", ::getpid());
  fs::create_directories(folder);
  for (const char* name : {"configs", "models", "recipes", "evals"}) {
    fs::create_directory_symlink(kSource / name, folder / name);
  }
  int blocks = 0;
  for (const auto& entry : fs::directory_iterator(kSource / "docs")) {
    if (entry.path().extension() != ".md") continue;
    for (const Shown& block : shown_in(entry.path())) {
      const std::string output = "\n" + run(block.commands, folder);
      std::size_t from = 0;
      for (const std::string& line : block.lines) {
        const std::size_t at = output.find("\n" + line + "\n", from);
        ASSERT_NE(at, std::string::npos) << block.where << " shows\n" << line << "\nof" << output;
        from = at + line.size() + 1;
      }
      ++blocks;
    }
  }
  fs::remove_all(folder);
  EXPECT_GE(blocks, 4);
}

}  // namespace
