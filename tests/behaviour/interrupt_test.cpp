// A long command that is interrupted says so with its exit code and leaves nothing half-written.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

namespace levin::behaviour {
namespace {

namespace fs = std::filesystem;

TEST(Interrupt, TuneLeavesNothingHalfWritten) {
  const fs::path folder =
      fs::path(testing::TempDir()) / ("levin_interrupt_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const std::string profile = folder / "p.json";
  const pid_t child = ::fork();
  if (child == 0) {
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, STDOUT_FILENO);
    ::dup2(null, STDERR_FILENO);
    // More rounds than anybody waits for.
    ::execl(LEVIN_BINARY, LEVIN_BINARY, "tune", LEVIN_SOURCE_DIR "/models/tiny", "-o",
            profile.c_str(), "--rounds", "1000", nullptr);
    ::_exit(127);
  }
  std::this_thread::sleep_for(std::chrono::seconds(2));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WNOHANG), 0) << "it ended by itself";
  ::kill(child, SIGINT);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_TRUE(fs::is_empty(folder));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace levin::behaviour
