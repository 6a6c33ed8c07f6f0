// The program itself: signals, an abrupt end, the key from the environment.
#include <fcntl.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <regex>

#include "live_server.h"

namespace levin::serve::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// `levin serve models/tiny` with these flags and variables ("NAME=value").
class Process {
 public:
  explicit Process(std::vector<std::string> flags = {}, std::vector<std::string> variables = {},
                   uint16_t port = 0) {
    std::vector<std::string> words = {LEVIN_BINARY, "serve",  LEVIN_SOURCE_DIR "/models/tiny",
                                      "--threads",  "1",      "--max-model-len",
                                      "512",        "--port", std::to_string(port)};
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    int ends[2] = {};
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    id_ = ::fork();
    if (id_ == 0) {
      ::dup2(ends[1], STDERR_FILENO);
      ::execve(LEVIN_BINARY, arguments.data(), environment.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    log_ = ends[0];
  }
  ~Process() {
    if (id_ > 0) {
      ::kill(id_, SIGKILL);
      wait();
    }
    ::close(log_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Reads the log until it matches; false when it ends before.
  bool read_log(const std::string& pattern, std::smatch& match) {
    const std::regex regex(pattern);
    char bytes[4096];
    while (!std::regex_search(text_, match, regex)) {
      const ssize_t got = ::read(log_, bytes, sizeof(bytes));
      if (got <= 0) return false;
      text_.append(bytes, static_cast<std::size_t>(got));
    }
    return true;
  }
  // Waits until it serves; 0 when it ends before. Whoever fills the pipe later is read by nobody:
  // keep logs short.
  uint16_t ready() {
    std::smatch match;
    if (!read_log("ready: http://127\\.0\\.0\\.1:(\\d+) answers", match)) return 0;
    const auto port = static_cast<uint16_t>(std::stoi(match[1]));
    Client client(port);
    client.send_request("GET", "/health");
    EXPECT_EQ(client.read().status, 200) << "it is not ready";
    return port;
  }
  // Of the log, when the process has ended.
  void read_rest() {
    std::smatch none;
    read_log("(?!)", none);
  }
  void signal(int number) const { ::kill(id_, number); }
  // The exit code, or 128 and the signal.
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(id_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& log() const { return text_; }

 private:
  pid_t id_ = -1;
  int log_ = -1;
  std::string text_;
};

Json counting(int tokens, bool stream) {
  return {{"prompt", "Count:"}, {"max_tokens", tokens}, {"ignore_eos", true}, {"stream", stream}};
}

TEST(Process, SigtermFinishesWhatWasAccepted) {
  Process process;
  const uint16_t port = process.ready();
  ASSERT_NE(port, 0) << process.log();
  Client client(port);
  client.send_request("POST", "/v1/completions", counting(200, true).dump());
  ASSERT_FALSE(client.receive().empty());
  process.signal(SIGTERM);
  std::string rest;
  while (rest.find("[DONE]") == rest.npos) {
    const std::string more = client.receive();
    ASSERT_FALSE(more.empty()) << "the answer was cut";
    rest += more;
  }
  EXPECT_EQ(process.wait(), 0);
}

TEST(Process, ASecondSigtermEndsAtOnce) {
  Process process({"--max-num-seqs", "1"});
  const uint16_t port = process.ready();
  ASSERT_NE(port, 0) << process.log();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 12; ++i) {  // one after the other: this takes a while
    clients.push_back(std::make_unique<Client>(port));
    clients.back()->send_request("POST", "/v1/completions", counting(480, i % 2 == 0).dump());
  }
  std::smatch match;
  ASSERT_FALSE(clients[0]->receive().empty());
  process.signal(SIGTERM);
  ASSERT_TRUE(process.read_log("draining", match));
  const auto start = Clock::now();
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 0);
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 2 * kTimeFactor);
}

TEST(Process, StartsAgainAfterSigkillOnTheSamePort) {
  uint16_t port = 0;
  {
    Process process;
    port = process.ready();
    ASSERT_NE(port, 0) << process.log();
    Client client(port);
    client.send_request("POST", "/v1/completions", counting(480, true).dump());
    ASSERT_FALSE(client.receive().empty());
    process.signal(SIGKILL);
    EXPECT_EQ(process.wait(), 128 + SIGKILL);
    while (!client.receive().empty()) {
    }
  }
  Process again({}, {}, port);
  ASSERT_EQ(again.ready(), port) << again.log();
  Client client(port);
  client.send_request("POST", "/v1/completions", counting(4, false).dump());
  EXPECT_EQ(client.read().status, 200);
}

TEST(Process, TheKeyMayComeFromTheEnvironment) {
  Process process({}, {"LEVIN_API_KEY=from-outside"});
  const uint16_t port = process.ready();
  ASSERT_NE(port, 0) << process.log();
  Client without(port);
  without.send_request("GET", "/v1/models");
  EXPECT_EQ(without.read().status, 401);
  Client with(port);
  with.send_request("GET", "/v1/models", {}, "Authorization: Bearer from-outside\r\n");
  EXPECT_EQ(with.read().status, 200);
}

TEST(Process, RefusesWhatWouldLeaveTheDoorOpen) {
  struct Case {
    std::vector<std::string> flags;
    std::vector<std::string> variables;
    const char* message;
  };
  for (const Case& each : {Case{{}, {"LEVIN_API_KEY="}, "an API key is empty"},
                           Case{{}, {"LEVIN_API_KEYS=a"}, "unknown environment variable"},
                           Case{{"--allowed-origins", "*"}, {}, "origins cannot be read"},
                           Case{{"--allowed-origins", R"(["chat.example"])"}, {}, "chat.example"},
                           Case{{}, {"LEVIN_API_KEY=a\r\nb"}, "no text of one line"},
                           Case{{"--api-key", "a\r\nX: y"}, {}, "no text of one line"},
                           Case{{"--metrics-prefix", "my-levin:"}, {}, "--metrics-prefix"},
                           Case{{"--metrics-prefix", "0levin"}, {}, "--metrics-prefix"},
                           Case{{"--metrics-prefix", "a b\n"}, {}, "--metrics-prefix"},
                           Case{{"--max-request-bytes", "0"}, {}, "--max-request-bytes"},
                           Case{{"--max-request-bytes", "-1"}, {}, "--max-request-bytes"},
                           Case{{"--request-memory", "1M"}, {}, "--request-memory"},
                           Case{{"--request-timeout", "-1"}, {}, "--request-timeout"}}) {
    Process process(each.flags, each.variables);
    std::smatch match;
    EXPECT_TRUE(process.read_log(each.message, match)) << process.log();
    EXPECT_EQ(process.wait(), 2);
  }
}

}  // namespace
}  // namespace levin::serve::testing
