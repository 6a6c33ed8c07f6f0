// The client against servers that do what they should not: nothing of it may look like a good
// result.
#include "bench/client/client_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "bench/client/definitions.h"
#include "core/error.h"
#include "core/progress.h"
#include "mock_server.h"

namespace levin::bench::client {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::Good;
using ::testing::HasSubstr;
using testing::MockServer;
using ::testing::Not;
using testing::Peer;

ClientOptions options_for(const MockServer& server) {
  Progress::set_enabled(false);
  ClientOptions options;
  options.target.url = server.url();
  options.target.timeout_seconds = 20;
  options.max_concurrency = {4};
  options.num_prompts = 8;
  options.rounds = 2;
  options.dataset.output_tokens = 5;
  return options;
}

constexpr int kControl = 2 * 8;  // requests: two rounds of eight
constexpr int kWarmUps = 4;
constexpr int kAll = 2 * kControl;

// All streams, warm-ups included, are answered by `stream`.
ClientReport measure(const std::function<void(const Peer&)>& stream) {
  const MockServer server([&](const Peer& peer, int) { stream(peer); });
  return run_client_bench(options_for(server));
}

std::string only_failure(const ClientReport& report) {
  EXPECT_EQ(report.failed(), kAll + kWarmUps);
  EXPECT_FALSE(report.valid());
  EXPECT_EQ(report.points[1].summary.failures.size(), 1u);
  return report.points[1].summary.failures.begin()->first;
}

TEST(ClientBench, CountsWhatTheServerSays) {
  const ClientReport report = measure(Good{.tokens = 5, .prompt = 60});
  EXPECT_TRUE(report.valid()) << complaint(report);
  ASSERT_EQ(report.points.size(), 2u);
  EXPECT_EQ(report.points[0].name, "1 at a time");
  EXPECT_EQ(report.points[1].summary.requests, kControl);
  EXPECT_EQ(report.points[1].summary.output_tokens, 5 * kControl);
  EXPECT_EQ(report.points[1].summary.prompt_tokens, 60 * kControl);
  EXPECT_EQ(report.cached_share(), 0);
  const nlohmann::ordered_json json = to_json(report);
  EXPECT_EQ(json["points"][1]["output_tokens"], 5 * kControl);
  EXPECT_TRUE(json["points"][1]["ttft_ms"]["p99"].is_number());
  EXPECT_TRUE(json["points"][1]["over_control"]["median"].is_number());
  EXPECT_EQ(json["complaint"], nullptr);
  EXPECT_THAT(to_text(report), AllOf(HasSubstr("TTFT  request sent"), HasSubstr("no /metrics")));
}

TEST(ClientBench, KeepsToItsConcurrencyAndAPromptsBeginningsDiffer) {
  MockServer server([](const Peer& peer, int) {
    std::this_thread::sleep_for(5ms);
    Good{}(peer);
  });
  const ClientReport report = run_client_bench(options_for(server));
  EXPECT_EQ(server.most_at_once(), 4);
  EXPECT_EQ(report.points[0].summary.most_at_once, 1);
  EXPECT_EQ(report.points[1].summary.most_at_once, 4);
  std::set<std::string> beginnings;
  for (const std::string& request : server.requests()) {
    const std::size_t at = request.find("\"prompt\":\"");
    ASSERT_NE(at, request.npos);
    beginnings.insert(request.substr(at + 10, 8));
    EXPECT_THAT(request,
                AllOf(HasSubstr("\"include_usage\":true"), HasSubstr("\"model\":\"mock\"")));
  }
  EXPECT_EQ(beginnings.size(), server.requests().size());
}

TEST(ClientBench, ChatHasMessagesAndTheKeyIsSent) {
  MockServer server([](const Peer& peer, int) { Good{.tokens = 5}(peer); });
  server.key = "secret";
  ClientOptions options = options_for(server);
  EXPECT_THROW(run_client_bench(options), Error);
  options.target.api_key = "secret";
  options.endpoint = "/v1/chat/completions";
  options.ignore_eos = true;
  EXPECT_TRUE(run_client_bench(options).valid());
  EXPECT_THAT(server.requests().back(),
              AllOf(HasSubstr("POST /v1/chat/completions "), HasSubstr("\"ignore_eos\":true"),
                    HasSubstr("\"messages\":[{\"role\":\"user\",\"content\":")));
}

TEST(ClientBench, WithoutUsageThereIsNoThroughputInTokens) {
  const ClientReport report = measure(Good{.usage = false});
  EXPECT_TRUE(report.valid());
  const nlohmann::ordered_json json = to_json(report);
  EXPECT_EQ(json["points"][1]["output_tokens_per_second"], nullptr);
  EXPECT_EQ(json["points"][1]["over_control"], nullptr);
  EXPECT_EQ(json["points"][1]["tpot_ms"], nullptr);
  EXPECT_TRUE(json["points"][1]["ttft_ms"]["p50"].is_number());
  EXPECT_THAT(to_text(report), AllOf(HasSubstr("no usage: "), HasSubstr("server does not say")));
  EXPECT_THAT(to_html(report), HasSubstr("does not count tokens"));
}

TEST(ClientBench, CachedPromptsMakeItInvalidUnlessAllowed) {
  const MockServer server([](const Peer& peer, int) { Good{.prompt = 100, .cached = 2}(peer); });
  ClientOptions options = options_for(server);
  const ClientReport report = run_client_bench(options);
  EXPECT_FALSE(report.valid());
  EXPECT_EQ(report.failed(), 0);
  EXPECT_THAT(complaint(report), AllOf(HasSubstr("2.0 %"), HasSubstr("--allow-cached")));
  EXPECT_EQ(to_json(report)["valid"], false);
  EXPECT_THAT(to_html(report), HasSubstr("Not valid"));
  options.allow_cached = true;
  EXPECT_TRUE(run_client_bench(options).valid());
}

TEST(ClientBench, OnePercentCachedIsTolerated) {
  EXPECT_TRUE(measure(Good{.prompt = 100, .cached = 1}).valid());
}

TEST(ClientBench, RefusalsAreNamedWithTheirReason) {
  EXPECT_EQ(only_failure(measure(
                [](const Peer& peer) { peer.answer(500, R"({"error": {"message": "boom"}})"); })),
            "HTTP 500: boom");
  EXPECT_EQ(only_failure(measure([](const Peer& peer) {
              peer.answer(429, R"({"error": "busy"})", "Retry-After: 7\r\n");
            })),
            "HTTP 429 (Retry-After 7 s): busy");
}

TEST(ClientBench, BrokenStreamsAreFailures) {
  EXPECT_THAT(only_failure(measure([](const Peer& peer) {
                peer.begin_stream();
                peer.event(R"({"choices": [{"te)");
                peer.event("[DONE]");
              })),
              HasSubstr("broken event"));
  EXPECT_THAT(only_failure(measure([](const Peer& peer) {
                peer.begin_stream();
                peer.event(R"({"choices": [{"text": "x"}]})");
              })),
              HasSubstr("without [DONE]"));
  EXPECT_THAT(only_failure(measure([](const Peer& peer) {
                peer.begin_stream();
                peer.send("data: {\"choices\": [{\"text\": \"x\"");
              })),
              HasSubstr("in the middle of an event"));
  EXPECT_THAT(
      only_failure(measure([](const Peer& peer) { peer.answer(200, "{\"choices\": []}"); })),
      HasSubstr("the stream ended in the middle"));
}

TEST(ClientBench, ConnectionsThatBreakAreFailures) {
  EXPECT_THAT(only_failure(measure([](const Peer& peer) {
                peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                peer.send("22\r\ndata: {\"choices\": [{\"text\": \"x\"}]}\r\n");
              })),
              HasSubstr("closed the connection"));
  EXPECT_THAT(only_failure(measure([](const Peer&) {})), HasSubstr("closed the connection"));
}

TEST(ClientBench, SlowServersRunIntoTheTimeLimit) {
  const MockServer server([](const Peer& peer, int) {
    peer.begin_stream();
    std::this_thread::sleep_for(1500ms);
  });
  ClientOptions options = options_for(server);
  options.target.timeout_seconds = 0.3;
  options.rounds = 1;
  options.num_prompts = 2;
  options.warm_ups = 0;
  const ClientReport report = run_client_bench(options);
  EXPECT_EQ(report.failed(), 4);
  EXPECT_THAT(report.points[1].summary.failures.begin()->first, HasSubstr("within 0.3 s"));
  EXPECT_THAT(describe_work(report), HasSubstr("; 1 round;"));
}

TEST(ClientBench, SomeFailuresAreCountedAndTheOthersMeasured) {
  const MockServer server([](const Peer& peer, int number) {
    if (number % 4 == 0) return peer.answer(503, "draining");
    Good{}(peer);
  });
  const ClientReport report = run_client_bench(options_for(server));
  EXPECT_EQ(report.failed(), (kAll + kWarmUps) / 4);
  EXPECT_FALSE(report.valid());
  EXPECT_THAT(complaint(report), HasSubstr("9 requests failed"));
  EXPECT_THAT(to_text(report), AllOf(HasSubstr("4 of 16 requests: HTTP 503: draining"),
                                     HasSubstr("failed, warm-up: 1 request,")));
  EXPECT_EQ(report.points[1].summary.ttft.count, 12u);
}

TEST(ClientBench, RawRecordsHaveEveryRequest) {
  const std::string lines = raw_records(measure(Good{}));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), kAll);
  const auto first = nlohmann::json::parse(lines.substr(0, lines.find('\n')));
  EXPECT_EQ(first["load"], "1 at a time");
  EXPECT_EQ(first["round"], 0);
  EXPECT_EQ(first["outputs"].size(), 4u);
}

TEST(ClientBench, TimeToTheFirstTokenIsOfTheFirstTextNotOfTheRole) {
  const MockServer server([](const Peer& peer, int) {
    peer.begin_stream();
    peer.event(R"({"choices": [{"delta": {"role": "assistant", "content": ""}}]})");
    std::this_thread::sleep_for(60ms);
    peer.event(R"({"choices": [{"delta": {"content": "x"}}]})");
    std::this_thread::sleep_for(40ms);
    peer.event(R"({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]})");
    peer.event(Good{.tokens = 5}.usage_chunk());
    peer.event("[DONE]");
  });
  ClientOptions options = options_for(server);
  options.max_concurrency = {1};
  options.num_prompts = 2;
  options.rounds = 1;
  const PointSummary summary = run_client_bench(options).points[0].summary;
  EXPECT_GE(summary.ttft.percentiles[0], 0.06);
  EXPECT_GE(summary.itl.percentiles[0], 0.03);
  EXPECT_NEAR(summary.tpot.percentiles[0], summary.itl.percentiles[0] / 4, 1e-9);
}

TEST(ClientBench, OpenLoopsSendWhenItIsTime) {
  const MockServer server([](const Peer& peer, int) {
    std::this_thread::sleep_for(30ms);  // longer than between arrivals
    Good{}(peer);
  });
  ClientOptions options = options_for(server);
  options.max_concurrency.clear();
  options.request_rate = 100;
  options.num_prompts = 60;
  options.rounds = 1;
  options.goodput.ttft = 10;
  const ClientReport report = run_client_bench(options);
  ASSERT_EQ(report.points.size(), 2u);
  const Point& point = report.points[1];
  EXPECT_EQ(point.name, "100 a second");
  EXPECT_GT(point.summary.most_at_once, 1);
  const std::vector<RequestRecord>& records = point.rounds[0].load.records;
  EXPECT_NEAR(records.back().due, 0.6, 0.35);
  for (const RequestRecord& record : records) EXPECT_GE(record.sent, record.due);
  EXPECT_EQ(point.summary.good_per_second->median, point.summary.requests_per_second.median);
  EXPECT_EQ(point.summary.late.count, 60u);
}

TEST(ClientBench, CountersOfTheServerTellDraftsAndStrangers) {
  MockServer server([](const Peer& peer, int) { Good{}(peer); });
  std::atomic<int> scrapes = 0;
  server.metrics = [&scrapes] {  // far more than this client asked for
    const int times = ++scrapes;
    return fmt::format(
        "levin:generation_tokens_total {}\nlevin:spec_decode_num_drafts_total {}\n"
        "levin:spec_decode_num_draft_tokens_total {}\n"
        "levin:spec_decode_num_accepted_tokens_total {}\n"
        "levin:spec_decode_num_accepted_tokens_per_pos_total{{position=\"0\"}} {}\n",
        1000 * times, 100 * times, 200 * times, 50 * times, 50 * times);
  };
  const ClientReport report = run_client_bench(options_for(server));
  EXPECT_TRUE(report.counted);
  EXPECT_THAT(to_text(report),
              AllOf(HasSubstr("not alone, 4 at a time: the server put out 2000"),
                    HasSubstr("4 at a time: 2.00 drafts a round, acceptance length 1.50, accepted "
                              "per position 0.500")));
}

TEST(ClientBench, ServersThatAreNone) {
  ClientOptions options;
  {
    const MockServer server([](const Peer&, int) {});
    options = options_for(server);
  }
  try {
    run_client_bench(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kMachine);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(options.target.url), HasSubstr("is it running")));
  }
  options.target.url = "ftp://localhost";
  try {
    run_client_bench(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kBadInput);
  }
}

TEST(ClientBench, ModelsAreTheServers) {
  MockServer server([](const Peer& peer, int) { Good{}(peer); });
  ClientOptions options = options_for(server);
  options.model = "other";
  const auto message = [&] {
    try {
      run_client_bench(options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message(), AllOf(HasSubstr("no such model"), HasSubstr("mock")));
  options.model.clear();
  server.models = R"({"data": [{"id": "a"}, {"id": "b"}]})";
  EXPECT_THAT(message(), AllOf(HasSubstr("several models"), HasSubstr("a, b")));
  server.models = "<html>";
  EXPECT_THAT(message(), HasSubstr("no list of models"));
}

// A stream that never ends is left after a while, not kept.
TEST(ClientBench, EndlessStreamsAreLeft) {
  const MockServer server([](const Peer& peer, int) {
    peer.begin_stream();
    for (int i = 0; i < 200000 && peer.event(R"({"choices": [{"text": "x"}]})"); ++i) {
    }
  });
  ClientOptions options = options_for(server);
  options.rounds = 1;
  options.num_prompts = 1;
  options.warm_ups = 0;
  const ClientReport report = run_client_bench(options);
  EXPECT_EQ(report.failed(), 2);
  EXPECT_THAT(report.points[1].summary.failures.begin()->first, HasSubstr("does not end"));
  EXPECT_LT(report.points[1].rounds[0].load.records[0].outputs.size(), 2000u);
}

TEST(ClientBench, ShortAnswersAreNotWhatIgnoreEosAskedFor) {
  const MockServer server(
      [](const Peer& peer, int number) { Good{.tokens = number % 2 == 0 ? 5 : 3}(peer); });
  ClientOptions options = options_for(server);
  EXPECT_TRUE(run_client_bench(options).valid());
  options.ignore_eos = true;
  const ClientReport report = run_client_bench(options);
  EXPECT_FALSE(report.valid());
  EXPECT_EQ(report.failed(), 0);
  EXPECT_EQ(report.cut_short(), kAll / 2);
  EXPECT_THAT(complaint(report), HasSubstr("16 answers are shorter than --output-len"));
}

TEST(ClientBench, ASeedMakesEveryRunTheSame) {
  std::vector<std::string> works;
  std::vector<std::vector<std::string>> runs;
  for (const std::optional<uint64_t> seed :
       {std::optional<uint64_t>(7), std::optional<uint64_t>(7), std::optional<uint64_t>(8),
        std::optional<uint64_t>(), std::optional<uint64_t>()}) {
    MockServer server([](const Peer& peer, int) { Good{}(peer); });
    ClientOptions options = options_for(server);
    options.number_seed = seed;
    works.push_back(run_client_bench(options).work);
    runs.emplace_back();
    for (const std::string& request : server.requests()) {
      runs.back().push_back(request.substr(request.find("\r\n\r\n")));
    }
    // Those that are sent at once arrive in any order.
    std::sort(runs.back().begin(), runs.back().end());
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
  EXPECT_NE(runs[3], runs[4]);
  for (const std::string& work : works) EXPECT_EQ(work, works[0]);
}

TEST(ClientBench, LoadsThatNoMemoryHoldsAreRefusedBeforeTheyAreMade) {
  const MockServer server([](const Peer& peer, int) { Good{}(peer); });
  const auto refused = [&](const ClientOptions& options) {
    try {
      run_client_bench(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kBadInput);
      EXPECT_THAT(error.parts().where, HasSubstr("--num-prompts"));
      EXPECT_THAT(error.parts().expected, HasSubstr("4 GiB"));
      return;
    }
    FAIL();
  };
  ClientOptions many = options_for(server);
  many.num_prompts = 1'000'000;
  many.dataset.input_tokens = 10'000;
  refused(many);
  ClientOptions long_answers = options_for(server);
  long_answers.num_prompts = 10'000;
  long_answers.dataset.output_tokens = 1'000'000;
  refused(long_answers);
}

TEST(ClientBench, LengthsThatCannotBeAreTheServers) {
  MockServer server([](const Peer& peer, int) { Good{}(peer); });
  for (const char* tokens : {"-1e18", "1e18"}) {
    std::atomic<int> asked = 0;
    server.prompt_tokens = [&] { return ++asked == 1 ? std::string("5") : std::string(tokens); };
    ClientOptions options = options_for(server);
    if (tokens[0] == '-') {  // nothing follows from it
      EXPECT_FALSE(run_client_bench(options).scale_measured);
    } else {
      EXPECT_THROW(run_client_bench(options), Error);
    }
  }
}

// What a server says must not steer a terminal.
TEST(ClientBench, NamesFromServersAreShownEscaped) {
  MockServer server([](const Peer& peer, int) {
    peer.answer(500,
                "\x1b[2J\xc2\x9b"
                "31mboom");
  });
  server.models = R"({"data": [{"id": "m\u001b[31m\u009b2J\nx"}]})";
  ClientOptions options = options_for(server);
  options.rounds = 1;
  const ClientReport report = run_client_bench(options);
  const std::string text = to_text(report);
  EXPECT_THAT(text, AllOf(HasSubstr("m\\x1b[31m\\x9b2J\\x0ax at "), HasSubstr("\\x1b[2J")));
  EXPECT_EQ(text.find('\x1b'), text.npos);
  EXPECT_EQ(text.find("\xc2\x9b"), text.npos);
}

TEST(ClientBench, PagesEscapeWhatServersSay) {
  const ClientReport report =
      measure([](const Peer& peer) { peer.answer(500, "<script>alert(1)</script>"); });
  EXPECT_THAT(to_html(report), AllOf(Not(HasSubstr("<script>")), HasSubstr("&lt;script&gt;")));
}

}  // namespace
}  // namespace levin::bench::client
