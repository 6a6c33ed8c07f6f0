// Clients that leave, and clients that do not read: their slots are free at once, and nobody else
// notices.
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "live_server.h"

namespace levin::serve::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Waits until so many run.
void wait_for_running(const LiveServer& server, int count) {
  while (server.metric("num_requests_running") != count) std::this_thread::sleep_for(1ms);
}

// Seconds until nothing runs and nothing waits.
double seconds_until_idle(const LiveServer& server) {
  const auto start = Clock::now();
  while (server.metric("num_requests_running") + server.metric("num_requests_waiting") != 0) {
    if (seconds_since(start) > 60) break;
    std::this_thread::sleep_for(1ms);
  }
  return seconds_since(start);
}

double aborted(const LiveServer& server) {
  return server.metric(
      "request_success_total{model_name=\"tiny\",engine=\"0\",finished_reason=\"abort\"}");
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// 480 tokens take seconds.
Json endless(bool stream) {
  return {{"prompt", "Count:"}, {"max_tokens", 480}, {"ignore_eos", true}, {"stream", stream}};
}

class Disconnect : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = load_tiny().release(); }
  static void TearDownTestSuite() { delete std::exchange(engine_, nullptr); }

  LiveServer server_{*engine_};

 private:
  static inline engine::Engine* engine_ = nullptr;
};

// The median of five, since somebody else may use the machine; all of them are cancelled.
TEST_F(Disconnect, AClientThatLeavesFreesItsSlotWithin100Milliseconds) {
  for (const bool stream : {true, false}) {
    std::vector<double> seconds;
    const double before = aborted(server_);
    for (int i = 0; i < 5; ++i) {
      Client client(server_.port());
      client.send_request("POST", "/v1/completions", endless(stream).dump());
      wait_for_running(server_, 1);
      client.close();
      seconds.push_back(seconds_until_idle(server_));
    }
    EXPECT_EQ(aborted(server_), before + 5);
    RecordProperty(stream ? "stream_ms" : "whole_ms", static_cast<int>(median(seconds) * 1e3));
    EXPECT_LT(median(seconds), 0.1 * kTimeFactor);
  }
}

TEST_F(Disconnect, AClientThatLeavesWhileItWaitsNeverGetsASlot) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kSlots + 5; ++i) {
    clients.push_back(std::make_unique<Client>(server_.port()));
    clients.back()->send_request("POST", "/v1/completions", endless(i % 2 == 0).dump());
    while (server_.metric("num_requests_running") + server_.metric("num_requests_waiting") <= i) {
      std::this_thread::sleep_for(1ms);
    }
  }
  wait_for_running(server_, kSlots);
  const double prompts = server_.metric("prompt_tokens_total");
  for (int i = kSlots; i < kSlots + 5; ++i) clients[static_cast<std::size_t>(i)]->close();
  while (server_.metric("num_requests_waiting") != 0) std::this_thread::sleep_for(1ms);
  clients.clear();
  seconds_until_idle(server_);
  EXPECT_EQ(aborted(server_), kSlots + 5);
  EXPECT_EQ(server_.metric("prompt_tokens_total"), prompts);
}

// Gone before its prompt has been tokenized: nothing is generated for nobody.
TEST_F(Disconnect, AClientThatLeavesAtOnceCostsNothing) {
  constexpr int kClients = 40;
  for (int i = 0; i < kClients; ++i) {
    Client client(server_.port());
    client.send_request("POST", "/v1/completions", endless(i % 2 == 0).dump());
  }
  while (aborted(server_) < kClients) std::this_thread::sleep_for(1ms);
  seconds_until_idle(server_);
  EXPECT_EQ(aborted(server_), kClients);
  // A step or two, of those that got a slot at all; 480 each otherwise.
  EXPECT_LT(server_.metric("generation_tokens_total"), kClients * 40);
}

// Lines of the log, from now on.
class Log {
 public:
  Log() : sink_(std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(1000)) {
    spdlog::default_logger()->sinks().push_back(sink_);
  }
  ~Log() { spdlog::default_logger()->sinks().pop_back(); }
  int count(std::string_view text) {
    const std::vector<std::string> lines = sink_->last_formatted();
    return static_cast<int>(std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
      return line.find(text) != line.npos;
    }));
  }

 private:
  std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> sink_;
};

// Gone, as far as anybody can tell; but one that has only ended its own side learns what was wrong.
TEST_F(Disconnect, AClientThatLeavesInMidRequestIsLoggedLikeOthersThatLeave) {
  const std::string head = "POST /v1/completions?key=secret HTTP/1.1\r\nContent-Length: 100\r\n";
  for (const std::string& sent : {head + "\r\n{\"prompt\":", head, std::string("POST /v1")}) {
    SCOPED_TRACE(sent);
    Log log;
    Client client(server_.port());
    client.send(sent);
    client.end_sending();
    const Answer answer = client.read(5);
    EXPECT_EQ(answer.status, 400);
    EXPECT_TRUE(answer.whole);
    EXPECT_EQ(answer.json()["error"]["message"],
              "the connection ended in the middle of the request");
    EXPECT_EQ(log.count(" status=499 "), 1);
    EXPECT_EQ(log.count("status=400"), 0);
    EXPECT_EQ(log.count("secret"), 0);
    if (sent.size() > head.size()) {
      EXPECT_EQ(log.count("method=POST path=/v1/completions status=499"), 1);
    }
  }
  Log log;
  {
    Client idle(server_.port());  // between two requests nothing is lost
    idle.send_request("GET", "/version");
    idle.read(5);
  }
  EXPECT_EQ(server_.get("/version").status, 200);
  EXPECT_EQ(log.count("499"), 0);
}

// Log probabilities make for many bytes.
Json talkative() {
  return chat("Count", {{"stream", true},
                        {"logprobs", true},
                        {"top_logprobs", 20},
                        {"ignore_eos", true},
                        {"max_tokens", 450}});
}

// Reads a stream to its end; the longest time without any of it, once it has begun.
Answer read_watching(Client& client, double& longest_gap) {
  std::string bytes;
  longest_gap = 0;
  auto last = Clock::now();
  while (bytes.find("data: [DONE]") == bytes.npos) {
    const std::string more = client.receive();
    if (more.empty()) break;
    if (!bytes.empty()) longest_gap = std::max(longest_gap, seconds_since(last));
    last = Clock::now();
    bytes += more;
  }
  Answer answer;
  answer.body = bytes;
  return answer;
}

// Of a streamed chat.
std::string text_of(const Answer& answer) {
  std::string text;
  for (const std::string& data : answer.events()) {
    if (data == "[DONE]") continue;
    const Json delta = Json::parse(data)["choices"][0]["delta"];
    text += delta.value("reasoning", "") + delta.value("content", "");
  }
  return text;
}

TEST(SlowReaders, AreCutOffAndHoldUpNobody) {
  Log log;
  const auto engine = load_tiny();
  ServeOptions options = test_options();
  options.limits.unsent_bytes = 32 << 10;
  options.limits.send_buffer = 16 << 10;
  LiveServer server(*engine, options);
  const Json quick = chat("Tell me a story.", {{"stream", true}, {"max_tokens", 200}});
  const std::string expected = text_of(server.post("/v1/chat/completions", quick));
  constexpr int kStuck = kSlots - 1;
  std::vector<std::unique_ptr<Client>> stuck;
  for (int i = 0; i < kStuck; ++i) {
    stuck.push_back(std::make_unique<Client>(server.port(), 4096));
    stuck.back()->send_request("POST", "/v1/chat/completions", talkative().dump());
  }
  wait_for_running(server, kStuck);
  Client client(server.port());
  client.send_request("POST", "/v1/chat/completions", quick.dump());
  double longest_gap = 0;
  const Answer answer = read_watching(client, longest_gap);
  EXPECT_EQ(text_of(answer), expected);
  EXPECT_EQ(answer.events().back(), "[DONE]");
  RecordProperty("longest_gap_ms", static_cast<int>(longest_gap * 1e3));
  EXPECT_LT(longest_gap, 0.5 * kTimeFactor);
  EXPECT_LT(seconds_until_idle(server), 30 * kTimeFactor);
  EXPECT_EQ(aborted(server), kStuck);
  EXPECT_EQ(log.count("does not read: cut off with"), kStuck);
}

TEST(SlowReaders, AreCutOffWhenTheirTimeIsUp) {
  Log log;
  const auto engine = load_tiny();
  ServeOptions options = test_options();
  options.limits.write_time = 200ms;
  options.limits.unsent_bytes = std::size_t{1} << 30;
  options.limits.send_buffer = 16 << 10;
  LiveServer server(*engine, options);
  Client stuck(server.port(), 4096);
  stuck.send_request("POST", "/v1/chat/completions", talkative().dump());
  while (log.count("does not read: cut off after 0.2 s") == 0) std::this_thread::sleep_for(5ms);
  seconds_until_idle(server);
  EXPECT_EQ(aborted(server), 1);
}

}  // namespace
}  // namespace levin::serve::testing
