// What an operator sets: how long requests may take, and which pages may ask.
#include <gmock/gmock.h>

#include "live_server.h"

namespace levin::serve::testing {
namespace {

using namespace std::chrono_literals;

const Json kEndless = {{"prompt", "Count:"}, {"max_tokens", 480}, {"ignore_eos", true}};

TEST(Deadline, EndsARequestThatTakesLonger) {
  const auto engine = load_tiny(1);
  ServeOptions options = test_options();
  options.request_timeout = 50ms;
  const LiveServer server(*engine, options);
  const Answer whole = server.post("/v1/completions", kEndless);
  EXPECT_EQ(whole.status, 504);
  EXPECT_EQ(whole.json()["error"]["type"], "TimeoutError");
  Json body = kEndless;
  body["stream"] = true;
  const Answer streamed = server.post("/v1/completions", body);
  EXPECT_EQ(streamed.status, 200);
  ASSERT_GE(streamed.events().size(), 2U);
  EXPECT_EQ(streamed.events().back(), "[DONE]");
  EXPECT_EQ(Json::parse(streamed.events()[streamed.events().size() - 2])["error"]["code"], 504);
  body["max_tokens"] = 1;
  EXPECT_EQ(server.post("/v1/completions", body).events().back(), "[DONE]");
}

TEST(Deadline, OfAClientIsAHeader) {
  const auto engine = load_tiny(1);
  ServeOptions options = test_options();
  const LiveServer server(*engine, options);
  const auto ask = [&](std::string_view seconds) {
    return server.post_text("/v1/completions", kEndless.dump(),
                            fmt::format("X-Request-Timeout: {}\r\n", seconds));
  };
  EXPECT_EQ(ask("0.05").status, 504);
  for (const char* wrong : {"0", "-1", "soon", "1e9", "nan", "5s"}) {
    const Answer answer = ask(wrong);
    EXPECT_EQ(answer.status, 400) << wrong;
    EXPECT_EQ(answer.json()["error"]["param"], "X-Request-Timeout");
  }
  EXPECT_EQ(ask("600").status, 200);
}

// Of requests that wait for a slot, too.
TEST(Deadline, CountsFromTheArrival) {
  const auto engine = load_tiny(1);
  const LiveServer server(*engine);
  Client first(server.port());
  first.send_request("POST", "/v1/completions", kEndless.dump());
  while (server.metric("num_requests_running") != 1) std::this_thread::sleep_for(1ms);
  Client second(server.port());
  second.send_request("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 1})",
                      "X-Request-Timeout: 0.01\r\n");
  EXPECT_EQ(second.read().status, 504);
  EXPECT_EQ(first.read().status, 200);
}

// 512 tokens of at most 32 bytes: how many there are does not matter.
TEST(LongPrompts, AreRefusedByTheirBytes) {
  const auto engine = load_tiny(1);
  const LiveServer server(*engine);
  const auto message_of = [&](std::string_view path, const Json& body, std::string_view param) {
    const Answer answer = server.post(path, body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    const Json error = answer.json()["error"];
    if (!param.empty()) {
      EXPECT_EQ(error["param"], param);
    }
    return error["message"].get<std::string>();
  };
  const std::string long_text(512 * 32 + 1, ' ');
  const std::string fitting = long_text.substr(1);
  using ::testing::HasSubstr;
  for (const char* stream : {"false", "true"}) {
    EXPECT_THAT(
        message_of("/v1/completions", {{"prompt", long_text}, {"stream", Json::parse(stream)}},
                   "prompt"),
        HasSubstr("hold at most 16384 bytes. However, you requested 16385 bytes in the prompt"));
  }
  EXPECT_THAT(message_of("/v1/completions", {{"prompt", Json::array({"a", long_text})}}, "prompt"),
              HasSubstr("16385 bytes"));
  EXPECT_THAT(message_of("/v1/chat/completions", chat(long_text), "messages"), HasSubstr("bytes"));
  EXPECT_THAT(message_of("/v1/messages",
                         {{"max_tokens", 4},
                          {"messages", Json::array({{{"role", "user"}, {"content", long_text}}})}},
                         ""),
              HasSubstr("bytes"));
  EXPECT_THAT(message_of("/v1/responses", {{"input", long_text}}, "messages"), HasSubstr("bytes"));
  EXPECT_THAT(message_of("/v1/completions", {{"prompt", fitting}}, "prompt"),
              HasSubstr("512 tokens in the prompt"));
  // What is only counted, or cut, may be longer.
  EXPECT_EQ(server.post("/tokenize", {{"prompt", long_text}}).status, 200);
  const Json cut = {{"prompt", long_text}, {"truncate_prompt_tokens", 5}, {"max_tokens", 1}};
  EXPECT_EQ(server.post("/v1/completions", cut).json()["usage"]["prompt_tokens"], 5);
}

// 16 tokens by default, or as many as there is room for: nobody asked for more.
TEST(LongPrompts, LeaveACompletionWhatRoomThereIs) {
  const auto engine = load_tiny(1);
  const LiveServer server(*engine);
  for (const auto& [prompt, expected] : {std::pair(10, 16), std::pair(505, 7)}) {
    const Json body = {{"prompt", std::vector<int>(static_cast<std::size_t>(prompt), 300)},
                       {"ignore_eos", true}};
    const Answer answer = server.post("/v1/completions", body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.json()["usage"]["completion_tokens"], expected);
  }
  const Json full = {{"prompt", std::vector<int>(512, 300)}};
  EXPECT_EQ(server.post("/v1/completions", full).status, 400);
}

TEST(LongPrompts, HoldUpNobody) {
  const auto engine = load_tiny(1);
  const LiveServer server(*engine);
  const std::string large = Json{{"prompt", std::string(3 << 20, ' ')}}.dump();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send_request("POST", "/tokenize", large);
  }
  EXPECT_EQ(server.post("/tokenize", {{"prompt", "Hi"}}).status, 200);
  EXPECT_EQ(clients.back()->receive(0), "") << "large requests were answered before a small one";
  // A client that leaves takes its work along, and so does one whose time is up.
  for (const auto& client : clients) client->close();
  EXPECT_EQ(server.post_text("/tokenize", large, "X-Request-Timeout: 0.02\r\n").status, 504);
  EXPECT_EQ(server.post_text("/tokenize", large).status, 200);
}

// However many clients send at once, and whether they say how much it will be.
TEST(Bodies, TogetherHoldOnlySoMuch) {
  const auto engine = load_tiny(1);
  ServeOptions options = test_options();
  options.limits.held_bytes = 100 << 10;
  const LiveServer server(*engine, options);
  const std::string spaces(40 << 10, ' ');
  const auto held = [&] { return server.metric("http_body_bytes"); };
  for (const char* framing : {"Content-Length: 50000", "Transfer-Encoding: chunked"}) {
    SCOPED_TRACE(framing);
    const bool chunked = framing[0] == 'T';
    const double refused = server.metric("http_requests_refused_body_memory_total");
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 2; ++i) {
      clients.push_back(std::make_unique<Client>(server.port()));
      clients.back()->send(fmt::format("POST /v1/completions HTTP/1.1\r\n{}\r\n\r\n", framing));
      clients.back()->send(chunked ? fmt::format("{:x}\r\n{}\r\n", spaces.size(), spaces) : spaces);
    }
    // The parser keeps a chunk's last bytes until what follows them comes.
    const double both = 2 * static_cast<double>(spaces.size() - 1000);
    while (held() < both) std::this_thread::sleep_for(1ms);
    const Answer answer = server.post_text("/v1/completions", spaces);
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.header("Retry-After"), "1");
    EXPECT_EQ(answer.json()["error"]["type"], "ServiceUnavailableError");
    EXPECT_EQ(server.metric("http_requests_refused_body_memory_total"), refused + 1);
    EXPECT_EQ(server.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status, 200);
    clients.clear();
    while (held() > 0) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(server.post_text("/tokenize", "{\"prompt\": \"\"" + spaces + "}").status, 200);
    while (held() > 0) std::this_thread::sleep_for(1ms);
  }
}

constexpr std::string_view kOrigin = "Access-Control-Allow-Origin";

Answer preflight(const LiveServer& server, std::string_view origin) {
  Client client(server.port());
  client.send_request("OPTIONS", "/v1/chat/completions", {},
                      fmt::format("Origin: {}\r\nAccess-Control-Request-Method: POST\r\n"
                                  "Access-Control-Request-Headers: authorization, content-type\r\n",
                                  origin));
  return client.read();
}

TEST(Origins, NoPageOfAnotherOriginMayAskUnlessItIsListed) {
  const auto engine = load_tiny(1);
  const LiveServer closed(*engine);
  EXPECT_EQ(preflight(closed, "https://chat.example").status, 405);
  EXPECT_EQ(closed.get("/v1/models", "Origin: https://chat.example\r\n").header(kOrigin), "");
}

TEST(Origins, ListedOnesMayAsk) {
  const auto engine = load_tiny(1);
  ServeOptions options = test_options();
  options.allowed_origins = {"https://chat.example", "http://localhost:3000"};
  options.api_keys = {"secret"};
  const LiveServer server(*engine, options);
  const Answer asked = preflight(server, "https://chat.example");
  EXPECT_EQ(asked.status, 200);
  EXPECT_EQ(asked.header(kOrigin), "https://chat.example");
  EXPECT_EQ(asked.header("Access-Control-Allow-Headers"), "authorization,content-type");
  EXPECT_NE(asked.header("Access-Control-Allow-Methods").find("POST"), std::string::npos);
  EXPECT_EQ(asked.header("Vary"), "Origin");
  // A page may read errors too, and streams.
  const Answer refused = server.get("/v1/models", "Origin: http://localhost:3000\r\n");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.header(kOrigin), "http://localhost:3000");
  const Answer streamed = server.post_text("/v1/chat/completions",
                                           chat("Hi", {{"stream", true}, {"max_tokens", 2}}).dump(),
                                           "Origin: https://chat.example\r\nx-api-key: secret\r\n");
  EXPECT_EQ(streamed.status, 200);
  EXPECT_EQ(streamed.header(kOrigin), "https://chat.example");
  EXPECT_EQ(streamed.events().back(), "[DONE]");
  for (const char* other : {"https://chat.example.evil", "http://chat.example", "null"}) {
    EXPECT_EQ(preflight(server, other).status, 405) << other;
    EXPECT_EQ(server.get("/health", fmt::format("Origin: {}\r\n", other)).header(kOrigin), "");
  }
}

TEST(Origins, AllOfThem) {
  const auto engine = load_tiny(1);
  ServeOptions options = test_options();
  options.allowed_origins = {"*"};
  const LiveServer server(*engine, options);
  EXPECT_EQ(preflight(server, "null").header(kOrigin), "*");
  EXPECT_EQ(server.get("/health", "Origin: https://any.example\r\n").header(kOrigin), "*");
  EXPECT_EQ(server.get("/health").header(kOrigin), "");
}

// The share of the caches' positions, not of the slots.
TEST(Metrics, KvCacheUsageCountsTokens) {
  const auto engine = load_tiny();
  const LiveServer server(*engine);
  EXPECT_EQ(server.metric("kv_cache_usage_perc"), 0);
  Client client(server.port());
  client.send_request("POST", "/v1/completions", kEndless.dump());
  double most = 0;
  while (server.metric("num_requests_running") == 0) std::this_thread::sleep_for(1ms);
  while (server.metric("num_requests_running") == 1) {
    most = std::max(most, server.metric("kv_cache_usage_perc"));
  }
  // One of four slots, which in the end is nearly full.
  EXPECT_GT(most, 0.25 * 0.2);
  EXPECT_LE(most, 0.25);
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(server.metric("kv_cache_usage_perc"), 0);
}

}  // namespace
}  // namespace levin::serve::testing
