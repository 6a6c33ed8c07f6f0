// Clients that do what they should not: each gets the right status, and nobody else notices.
#include <gmock/gmock.h>

#include "live_server.h"

namespace levin::serve::testing {
namespace {

using namespace std::chrono_literals;

// Bounds on sizes only: a client of a busy machine is slow, too, and must get its answer.
ServeOptions strict_options() {
  ServeOptions options = test_options();
  options.limits.body_bytes = 1 << 20;
  options.limits.header_bytes = 8 << 10;
  return options;
}

LiveServer& strict() {
  static const auto engine = load_tiny();
  static LiveServer server(*engine, strict_options());
  return server;
}

class Hostile : public ::testing::Test {
 protected:
  // Whatever happened, the next client is served.
  void TearDown() override {
    EXPECT_EQ(strict().post("/v1/chat/completions", chat("Hi", {{"max_tokens", 2}})).status, 200);
  }
};

TEST_F(Hostile, BodiesThatAreNoRequests) {
  const LiveServer& server = strict();
  const std::string deep = "{\"messages\": " + std::string(100000, '[') + "}";
  const std::string nul("{\"prompt\": \"a\0b\"}", 17);
  for (const std::string& body :
       {std::string(),
        std::string("{"),
        std::string("[]"),
        std::string("null"),
        std::string("{}"),
        deep,
        nul,
        std::string("{\"prompt\": \"\xff\xfe\"}"),
        std::string("{\"prompt\": \"a\", \"prompt\": \"b\"}"),
        std::string("{\"prompt\": \"a\", \"max_tokens\": -1}"),
        std::string("{\"prompt\": \"a\", \"max_tokens\": 1e999}"),
        std::string("{\"prompt\": \"a\", \"max_tokens\": 99999999999999999999999}"),
        std::string("{\"prompt\": \"a\", \"max_tokens\": 18446744073709551615}"),
        std::string("{\"prompt\": \"a\", \"temperature\": -0.5}"),
        std::string("{\"prompt\": \"a\", \"temperature\": NaN}"),
        std::string("{\"prompt\": \"a\", \"top_p\": 0}"),
        std::string("{\"prompt\": \"a\", \"n\": 1000000}"),
        std::string("{\"prompt\": [1, -5]}"),
        std::string("{\"prompt\": [999999999]}"),
        std::string("{\"prompt\": \"\"}"),
        std::string("{\"prompt\": {}}"),
        std::string("{\"prompt\": \"a\", \"logit_bias\": {\"x\": 1}}"),
        std::string("{\"prompt\": \"a\", \"stop\": [1]}"),
        std::string("{\"prompt\": \"a\", \"stream\": \"yes\"}"),
        std::string("{\"prompt\": \"a\", \"model\": 5}")}) {
    const Answer answer = server.post_text("/v1/completions", body);
    EXPECT_EQ(answer.status, 400) << body.substr(0, 100) << "\n" << answer.body;
    EXPECT_TRUE(answer.json()["error"]["message"].is_string());
  }
  const std::string long_prompt(20000, 'x');
  EXPECT_EQ(server.post("/v1/completions", {{"prompt", long_prompt}}).status, 400);
  EXPECT_EQ(server.post("/v1/chat/completions", {{"messages", Json::array()}}).status, 400);
  EXPECT_EQ(server.post("/v1/chat/completions", {{"messages", {{"role", "user"}}}}).status, 400);
  EXPECT_EQ(server.post("/v1/completions", {{"prompt", "a"}, {"model", "gpt-5"}}).status, 404);
}

TEST_F(Hostile, WrongRoutesMethodsAndTypes) {
  const LiveServer& server = strict();
  EXPECT_EQ(server.get("/nothing").status, 404);
  EXPECT_EQ(server.get("/v1/chat/completions").status, 405);
  EXPECT_EQ(server.post("/health", Json::object()).status, 405);
  EXPECT_EQ(server.post_text("/v1/completions", "{}", "Content-Type: text/plain\r\n").status, 415);
  Client head(server.port());
  head.send_request("HEAD", "/health");
  const Answer answer = head.read(5, true);
  EXPECT_EQ(answer.status, 200);
  head.send_request("GET", "/version");
  EXPECT_EQ(head.read().status, 200);
}

TEST_F(Hostile, WhatIsNotHttp) {
  const LiveServer& server = strict();
  for (const std::string& bytes :
       {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not http\r\n\r\n"),
        std::string("GET / HTTP/9.9\r\n\r\n"), std::string("GET /\r\n\r\n"),
        std::string("POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n"),
        std::string("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")}) {
    Client client(server.port());
    client.send(bytes);
    const Answer answer = client.read(5);
    EXPECT_EQ(answer.status, 400) << bytes;
  }
}

// Numbers that a double holds and a float does not: refused by name, or they work.
TEST_F(Hostile, ExtremeNumbersAreNeverTheCheckpointsFault) {
  const LiveServer& server = strict();
  const char* numbers[] = {"1e-320",
                           "-1e-320",
                           "1e-300",
                           "-1e-300",
                           "1e-40",
                           "1e40",
                           "-1e40",
                           "1e300",
                           "-1e300",
                           "1e308",
                           "-1e308",
                           "1e400",
                           "0.999999999999999999",
                           "1.0000000001"};
  for (const char* field : {"temperature", "top_p", "min_p", "top_k", "presence_penalty",
                            "frequency_penalty", "repetition_penalty", "seed", "max_tokens",
                            "min_tokens", "n", "logprobs", "priority", "truncate_prompt_tokens"}) {
    for (const char* number : numbers) {
      const Answer answer = server.post_text(
          "/v1/completions", fmt::format(R"({{"prompt": "a", "{}": {}}})", field, number));
      if (answer.status == 200) continue;
      EXPECT_EQ(answer.status, 400) << field << " " << number << answer.body;
    }
  }
  for (const char* refused :
       {R"("repetition_penalty": 1e-320)", R"("repetition_penalty": 1e300)",
        R"("presence_penalty": 1e308)", R"("frequency_penalty": -1e308)", R"("min_p": -1e-320)",
        R"("top_p": 1.0000000001)", R"("top_p": -1e-320)", R"("logit_bias": {"5": 1e308})"}) {
    const Answer answer =
        server.post_text("/v1/completions", fmt::format(R"({{"prompt": "a", {}}})", refused));
    EXPECT_EQ(answer.status, 400) << refused;
    const std::string field = answer.json()["error"]["param"];
    EXPECT_EQ(std::string(refused).find('"' + field + '"'), 0U) << refused << answer.body;
  }
}

// An answer of known length, and one of unknown length that the connection's end ends.
TEST_F(Hostile, Http10IsAnswered) {
  const LiveServer& server = strict();
  const auto ask = [&](const std::string& request) {
    Client client(server.port());
    client.send(request);
    std::string bytes;
    for (std::string more = client.receive(10); !more.empty(); more = client.receive(10)) {
      bytes += more;
    }
    EXPECT_TRUE(client.ends(1));
    return bytes;
  };
  using ::testing::HasSubstr;
  using ::testing::Not;
  const auto whole = [](const std::string& bytes) {
    EXPECT_THAT(bytes, HasSubstr(" 200 OK\r\n"));
    EXPECT_THAT(bytes, HasSubstr("Connection: close\r\n"));
    EXPECT_THAT(bytes, Not(HasSubstr("Transfer-Encoding")));
  };
  const std::string health = ask("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  whole(health);
  EXPECT_THAT(health, HasSubstr("Content-Length: 15\r\n"));
  for (const bool stream : {false, true}) {
    const std::string body = chat("Hi", {{"max_tokens", 3}, {"stream", stream}}).dump();
    const std::string answer =
        ask(fmt::format("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {}\r\n"
                        "Expect: 100-continue\r\n\r\n{}",
                        body.size(), body));
    whole(answer);
    EXPECT_THAT(answer, Not(HasSubstr("100 Continue")));
    if (stream) {
      EXPECT_TRUE(answer.ends_with("data: [DONE]\n\n")) << answer;
      EXPECT_THAT(answer, HasSubstr("\r\n\r\ndata: {"));
    } else {
      EXPECT_TRUE(Json::accept(answer.substr(answer.find("\r\n\r\n") + 4))) << answer;
    }
  }
  EXPECT_THAT(ask("POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
              HasSubstr(" 400 "));
  EXPECT_THAT(ask("POST /v1/completions HTTP/1.0\r\n\r\n"), HasSubstr(" 400 "));
}

// A request behind a body of unknown length is nobody's: it must not be answered.
TEST_F(Hostile, TransferEncodingsThatNobodyUnderstandsEndTheConnection) {
  for (const char* encoding :
       {"xchunked", "chunked, identity", "gzip", "chunked\r\nTransfer-Encoding: chunked"}) {
    Client client(strict().port());
    client.send(
        fmt::format("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: {}\r\n\r\n"
                    "GET /version HTTP/1.1\r\n\r\n",
                    encoding));
    const Answer answer = client.read(5);
    EXPECT_TRUE(answer.status == 501 || answer.status == 400) << encoding << ": " << answer.status;
    EXPECT_NE(client.read(5).status, 200) << encoding;
  }
}

TEST_F(Hostile, TooMuch) {
  const LiveServer& server = strict();
  {
    Client client(server.port());
    client.send("GET /health HTTP/1.1\r\n");
    std::string flood;
    for (int i = 0; i < 2000; ++i)
      flood += fmt::format("X-Flood-{}: {}\r\n", i, std::string(40, 'f'));
    client.send(flood + "\r\n");
    EXPECT_EQ(client.read(5).status, 431);
  }
  {
    Client client(server.port());  // sends it all, then looks for the answer
    client.send_request("POST", "/v1/completions", std::string(10 << 20, ' '));
    EXPECT_EQ(client.read(5).status, 413);
  }
  {
    Client client(server.port());  // waits for permission
    client.send(
        "POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: "
        "99999999\r\n\r\n");
    EXPECT_EQ(client.read(5).status, 413);
  }
  {
    Client client(server.port());
    client.send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    const std::string chunk = "10000\r\n" + std::string(0x10000, ' ') + "\r\n";
    for (int i = 0; i < 40 && client.send(chunk); ++i) {
    }
    EXPECT_EQ(client.read(5).status, 413);
  }
}

// Clients that send all they have and look for the answer then, when the server has long decided.
TEST_F(Hostile, EveryLastAnswerArrivesWholeWhateverIsStillBeingSent) {
  const std::string more(8 << 20, 'x');
  const std::string post = "POST /v1/completions HTTP/1.1\r\n";
  const std::pair<int, std::string> requests[] = {
      {431, "GET /health HTTP/1.1\r\nX-Flood: "},
      {413, post + "Content-Length: 99999999\r\n\r\n"},
      {501, post + "Transfer-Encoding: gzip\r\n\r\n"},
      {400, post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"},
      {400, post + "Content-Length: -5\r\n\r\n"},
      {400, "\x16\x03\x01 not http\r\n\r\n"},
      {400, "POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"},
      {200, "GET /version HTTP/1.1\r\nConnection: close\r\n\r\n"},
      {404, "GET /nothing HTTP/1.0\r\n\r\n"}};
  for (const auto& [status, request] : requests) {
    Client client(strict().port());
    EXPECT_TRUE(client.send(request + more)) << request;
    const Answer answer = client.read(5);
    EXPECT_EQ(answer.status, status) << request;
    ASSERT_TRUE(answer.whole) << request;
    if (status != 200) {
      EXPECT_EQ(answer.json()["error"]["code"], status) << request;
    }
    EXPECT_TRUE(client.ends(5)) << request;
  }
}

TEST_F(Hostile, TooManyConnectionsAreToldSo) {
  ServeOptions options = test_options();
  options.limits.connections = 2;
  const auto engine = load_tiny(1);
  const LiveServer server(*engine, options);
  std::vector<std::unique_ptr<Client>> clients;
  while (clients.size() < 2) {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send_request("GET", "/version");
    // That which asked whether the server is up may not have gone yet.
    if (clients.back()->read(5).status != 200) clients.pop_back();
  }
  Client third(server.port());
  EXPECT_TRUE(third.send(std::string(8 << 20, 'x')));
  const Answer answer = third.read(5);
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.header("Retry-After"), "1");
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(answer.json()["error"]["message"], "too many connections");
  third.close();
  clients.clear();
  while (server.get("/version").status != 200) std::this_thread::sleep_for(1ms);
}

TEST_F(Hostile, ContinueIsSaidToThoseWhoAsk) {
  Client client(strict().port());
  const std::string body = chat("Hi", {{"max_tokens", 2}}).dump();
  client.send(
      fmt::format("POST /v1/chat/completions HTTP/1.1\r\nExpect: 100-continue\r\n"
                  "Content-Length: {}\r\n\r\n",
                  body.size()));
  EXPECT_EQ(client.read(5, true).status, 100);
  client.send(body);
  EXPECT_EQ(client.read().status, 200);
}

TEST_F(Hostile, SlowSendersAreCutOff) {
  ServeOptions options = test_options();
  options.limits.header_time = 300ms;
  options.limits.body_time = 300ms;
  const auto engine = load_tiny();
  LiveServer server(*engine, options);
  Client header(server.port());
  header.send("GET /health HTTP/1.1\r\nX-Slow: ");
  Client body(server.port());
  body.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  Client silent(server.port());
  for (int i = 0; i < 10; ++i) {  // a byte now and then buys no time
    header.send("x");
    body.send(" ");
    std::this_thread::sleep_for(40ms);
  }
  EXPECT_TRUE(header.ends(3));
  EXPECT_TRUE(body.ends(3));
  EXPECT_TRUE(silent.ends(3));
}

TEST_F(Hostile, RequestsInARowAreAnsweredInTheirOrder) {
  Client client(strict().port());
  const std::string body = chat("Hi", {{"max_tokens", 3}}).dump();
  std::string bytes;
  for (int i = 0; i < 3; ++i) {
    bytes += fmt::format("POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}",
                         body.size(), body);
    bytes += "GET /version HTTP/1.1\r\n\r\n";
  }
  client.send(bytes);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.read().json()["object"], "chat.completion");
    EXPECT_EQ(client.read().json()["version"], "test");
  }
}

TEST_F(Hostile, KeysAreAskedFor) {
  ServeOptions options = test_options();
  options.api_keys = {"secret", "other"};
  const auto engine = load_tiny();
  LiveServer server(*engine, options);
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(server.get("/metrics").status, 200);
  const Answer refused = server.get("/v1/models");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.header("WWW-Authenticate"), "Bearer");
  EXPECT_EQ(server.get("/v1/models", "Authorization: Bearer secre\r\n").status, 401);
  EXPECT_EQ(server.get("/v1/models", "Authorization: Bearer other\r\n").status, 200);
  EXPECT_EQ(server.get("/v1/models", "x-api-key: secret\r\n").status, 200);
  EXPECT_EQ(server.post("/v1/messages", Json::object()).json()["error"]["type"],
            "authentication_error");
}

}  // namespace
}  // namespace levin::serve::testing
