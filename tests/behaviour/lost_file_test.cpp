// A command that measured for long shows what it found even where the file that it was to write
// cannot be written.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "support/tiny_checkpoint.h"

namespace levin::behaviour {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int exit_code = -1;
  std::string stdout_text;
};

// The program under a limit that no file passes.
Outcome run_without_room(const std::vector<std::string>& arguments) {
  std::array<int, 2> pipe{};
  EXPECT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none = {.rlim_cur = 0, .rlim_max = 0};
    ::setrlimit(RLIMIT_FSIZE, &none);
    ::dup2(pipe[1], STDOUT_FILENO);
    ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);
    ::close(pipe[0]);
    ::close(pipe[1]);
    std::vector<char*> all = {const_cast<char*>(LEVIN_BINARY)};
    for (const std::string& argument : arguments)
      all.push_back(const_cast<char*>(argument.c_str()));
    all.push_back(nullptr);
    ::execv(LEVIN_BINARY, all.data());
    ::_exit(127);
  }
  ::close(pipe[1]);
  Outcome outcome;
  std::array<char, 4096> part{};
  for (ssize_t count = 0; (count = ::read(pipe[0], part.data(), part.size())) > 0;) {
    outcome.stdout_text.append(part.data(), static_cast<std::size_t>(count));
  }
  ::close(pipe[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

const std::string kModel = LEVIN_SOURCE_DIR "/models/tiny";

TEST(LostFile, TuneShowsWhatItFound) {
  const test::TempFolder folder;
  const Outcome outcome = run_without_room({"tune", kModel, "-o", folder / "p.json", "--rounds",
                                            "5", "--output-tokens", "2", "--prompt-tokens", "2"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.stdout_text, ::testing::HasSubstr("chosen "));
  EXPECT_THAT(outcome.stdout_text, ::testing::Not(::testing::HasSubstr("p.json")));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(LostFile, EvalShowsWhatItFound) {
  const test::TempFolder folder;
  const Outcome outcome =
      run_without_room({"eval", kModel, "--tasks", LEVIN_SOURCE_DIR "/evals/tiny/tasks", "--limit",
                        "1", "--outputs", folder / "o.jsonl"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.stdout_text, ::testing::HasSubstr("runtime "));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace levin::behaviour
