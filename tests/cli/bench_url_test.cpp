// levin bench --url against levin's own server, with the program's exit codes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "engine/engine.h"
#include "serve/server.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// The bundled model behind a port.
class TinyServer {
 public:
  TinyServer() : server_(options()), engine_(load()), thread_([this] { serve(); }) {}
  ~TinyServer() {
    server_.stop();
    thread_.join();
  }
  TinyServer(const TinyServer&) = delete;
  TinyServer& operator=(const TinyServer&) = delete;
  std::string url() const { return fmt::format("http://127.0.0.1:{}", server_.port()); }

 private:
  static serve::ServeOptions options() {
    serve::ServeOptions options;
    options.port = 0;
    options.served_model_names = {"tiny"};
    options.log_requests = false;
    return options;
  }
  static std::unique_ptr<engine::Engine> load() {
    engine::LoadOptions options;
    options.runtime.max_model_len = 512;
    options.runtime.max_num_seqs = 4;
    options.runtime.threads = 1;
    return engine::load_engine(fs::path(LEVIN_SOURCE_DIR) / "models/tiny", options);
  }
  void serve() {
    serve::EngineSettings settings;
    settings.scheduler.max_waiting = 1024;
    settings.scheduler.prefix_cache_bytes = int64_t{16} << 20;
    settings.speculation = {.num_speculative_tokens = 3};
    server_.run(*engine_, settings);
  }

  serve::Server server_;
  std::unique_ptr<engine::Engine> engine_;
  std::thread thread_;
};

const TinyServer& tiny() {
  static const TinyServer server;
  return server;
}

struct Outcome {
  int code = -1;
  std::string output;
};

// Runs levin bench with `flags`; standard error too, when `errors`.
Outcome bench(const std::string& flags, bool errors = false) {
  const std::string command =
      fmt::format("'{}' bench {} {}", LEVIN_BINARY, flags, errors ? "2>&1" : "2>/dev/null");
  FILE* pipe = ::popen(command.c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> bytes;
  while (const std::size_t got = std::fread(bytes.data(), 1, bytes.size(), pipe)) {
    outcome.output.append(bytes.data(), got);
  }
  outcome.code = WEXITSTATUS(::pclose(pipe));
  return outcome;
}

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string small_run(const std::string& more = "", int input_tokens = 100) {
  return fmt::format(
      "--url {}/v1/ --max-concurrency 1,4 --num-prompts 6 --num-rounds 2 --input-len {} "
      "--output-len 12 --ignore-eos {}",
      tiny().url(), input_tokens, more);
}

TEST(BenchUrl, MeasuresItsOwnServer) {
  const Outcome outcome = bench(small_run("--json"));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Json json = Json::parse(outcome.output);
  EXPECT_EQ(json["model"], "tiny");
  EXPECT_EQ(json["valid"], true);
  EXPECT_EQ(json["cached_share"], 0);
  ASSERT_EQ(json["points"].size(), 2u);
  for (const Json& point : json["points"]) {
    EXPECT_EQ(point["requests"], 12);
    EXPECT_EQ(point["failed"], 0);
    EXPECT_EQ(point["output_tokens"], 12 * 12);
    EXPECT_NEAR(point["prompt_tokens"].get<double>(), 12 * 100, 300);
    EXPECT_GT(point["output_tokens_per_second"]["median"], 0);
    EXPECT_GE(point["ttft_ms"]["p99"], point["ttft_ms"]["p50"]);
    EXPECT_GT(point["tpot_ms"]["mean"], 0);
    EXPECT_GT(point["speculation"]["drafts"], 0);
    EXPECT_GE(point["speculation"]["acceptance_length"], 1);
    EXPECT_LE(point["speculation"]["accepted_per_position"].size(), 3u);
  }
  EXPECT_EQ(json["points"][0]["over_control"]["median"], 1);
  EXPECT_EQ(json["points"][1]["most_at_once"], 4);
  // Nobody else is there, so the server's count is the client's.
  for (const Json& note : json["notes"])
    EXPECT_THAT(note.get<std::string>(), Not(HasSubstr("not alone")));
}

TEST(BenchUrl, ChatCountsTheSameWay) {
  const Outcome outcome = bench(small_run("--endpoint /v1/chat/completions --json"));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(Json::parse(outcome.output)["points"][1]["output_tokens"], 12 * 12);
}

TEST(BenchUrl, SharedBeginningsAreNotCached) {
  const Outcome cold =
      bench(small_run("--dataset-name sonnet --sonnet-prefix-len 150 --json", 200));
  ASSERT_EQ(cold.code, 0);
  EXPECT_EQ(Json::parse(cold.output)["cached_share"], 0);
}

TEST(BenchUrl, TheSamePromptsAgainAreCached) {
  const fs::path trace = fs::path(testing::TempDir()) / "same.jsonl";
  std::string line = "{\"output_length\": 4, \"prompt\": \"";
  for (int i = 0; i < 60; ++i) line += "the harbour was quiet ";
  std::ofstream(trace) << line << "\"}\n" << line << "\"}\n";
  const std::string flags = fmt::format(
      "--url {} --dataset-name trace --dataset-path {} --max-concurrency 1 "
      "--num-rounds 2 --json ",
      tiny().url(), trace.string());
  const Outcome cold = bench(flags);
  EXPECT_EQ(cold.code, 0) << cold.output;
  const Outcome warm = bench(flags + "--allow-cached");
  EXPECT_EQ(warm.code, 0) << warm.output;
  EXPECT_GT(Json::parse(warm.output)["cached_share"], 0.5);
}

TEST(BenchUrl, KeepsRawRecordsAndReplacesNothing) {
  const fs::path folder = fs::path(testing::TempDir()) / "bench-url-out";
  fs::remove_all(folder);
  const std::string flags = small_run("-o " + folder.string());
  const Outcome outcome = bench(flags);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("output tokens/s"), HasSubstr("TTFT  request sent"),
                                    HasSubstr("speculation, 4 at a time")));
  const std::string records = read(folder / "requests.jsonl");
  EXPECT_EQ(std::count(records.begin(), records.end(), '\n'), 24);
  EXPECT_EQ(Json::parse(read(folder / "summary.json"))["valid"], true);
  const std::string page = read(folder / "report.html");
  EXPECT_THAT(page, AllOf(HasSubstr("4 at a time"), HasSubstr("</html>")));
  EXPECT_EQ(page.find("http-equiv"), page.npos);
  EXPECT_EQ(page.find("src="), page.npos);

  const Outcome again = bench(flags, true);
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.output, HasSubstr("requests.jsonl"));
  EXPECT_EQ(read(folder / "requests.jsonl"), records);
}

TEST(BenchUrl, FailedRequestsAreAnAnswerOfNo) {
  const Outcome outcome = bench(small_run("", 5000), true);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("HTTP 400"), HasSubstr("levin: not valid:")));
}

TEST(BenchUrl, MistakesHaveTheirCodes) {
  const Outcome nobody = bench("--url http://127.0.0.1:1", true);
  EXPECT_EQ(nobody.code, 3);
  EXPECT_THAT(nobody.output, HasSubstr("the server does not answer"));
  const std::string url = "--url " + tiny().url();
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {url + " models/tiny", "MODEL"},
      {url + " --bandwidth", "--bandwidth"},
      {url + " --speculative-config '{}'", "--speculative-config"},
      {"models/tiny --request-rate 4", "--url URL"},
      {url + " --model other", "tiny"},
      {url + " --goodput ttft", "ttft:MS"},
      {url + " --goodput ttft:0", "ttft:MS"},
      {url + " --dataset-name trace", "one JSONL file"},
      {url + " --dataset-path /nonexistent", "/nonexistent"},
      {url + " --request-rate 0", "--request-rate"},
      {url + " --max-concurrency 1,x", "--max-concurrency"},
      {url + " --request-rate 1e300", "--request-rate"},
      {url + " --request-rate 1e-300", "--request-rate"},
      {url + " --burstiness 1e-300", "--burstiness"},
      {url + " --num-prompts 9000000000000000000", "--num-prompts"},
      {url + " --num-prompts 1000000 --input-len 10000000", "--num-prompts"},
      {url + " --input-len 9000000000000000000", "--input-len"},
      {url + " --output-len 9000000000000000000", "--output-len"},
      {url + " --sonnet-prefix-len 9000000000000000000", "--sonnet-prefix-len"},
      {url + " --api-key \"$(printf 'a\\r\\nX-Evil: 1')\"", "--api-key"},
      {"--url ''", "empty"},
  };
  for (const auto& [flags, message] : wrong) {
    const Outcome outcome = bench(flags, true);
    EXPECT_EQ(outcome.code, 2) << flags << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(message)) << flags;
  }
}

}  // namespace
}  // namespace levin::cli
