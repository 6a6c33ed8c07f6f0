// The trace as a viewer reads it: valid JSON, slices that nest on every track, times in order.
#include "engine/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "engine/generate.h"
#include "engine/scheduler.h"
#include "support/tiny_checkpoint.h"

namespace levin::engine {
namespace {

using Json = nlohmann::json;

std::unique_ptr<Engine> tiny_engine(int slots) {
  LoadOptions options;
  options.runtime.threads = 2;
  options.runtime.max_model_len = 256;
  options.runtime.max_num_seqs = slots;
  return load_engine(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny", options);
}

Request request(int tokens, int drafts) {
  Request request;
  for (int32_t i = 0; i < 20; ++i) request.prompt.push_back(100 + 7 * i);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = tokens;
  request.sampling.ignore_eos = true;
  request.speculation.num_speculative_tokens = drafts;
  return request;
}

// Nanoseconds of a time in microseconds.
int64_t ns(const Json& time) {
  return std::llround(time.get<double>() * 1e3);
}

// What Perfetto wants of every event, and that slices of a track lie in each other or apart.
void expect_valid(const Json& trace) {
  ASSERT_TRUE(trace.is_object());
  std::map<std::pair<int, int>, std::vector<int64_t>> open;  // ends of the slices around
  std::set<std::pair<int, int>> named, used;
  std::map<std::string, int> pairs;
  int64_t before = 0;
  for (const Json& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    const std::pair<int, int> track = {event.at("pid"), event.at("tid")};
    EXPECT_FALSE(event.at("name").get<std::string>().empty());
    if (phase == "M") {
      if (event.at("name") == "thread_name") named.insert(track);
      continue;
    }
    const int64_t begin = ns(event.at("ts"));
    EXPECT_GE(begin, before) << event;
    before = begin;
    if (phase == "b" || phase == "e") {
      pairs[event.at("id").dump()] += phase == "b" ? 1 : -1;
      EXPECT_TRUE(event.contains("cat"));
      continue;
    }
    if (phase == "C") {
      for (const auto& [key, value] : event.at("args").items()) EXPECT_TRUE(value.is_number());
      continue;
    }
    ASSERT_EQ(phase, "X") << event;
    used.insert(track);
    const int64_t end = begin + ns(event.at("dur"));
    EXPECT_GE(end, begin);
    std::vector<int64_t>& around = open[track];
    while (!around.empty() && around.back() <= begin) around.pop_back();
    if (!around.empty()) {
      EXPECT_LE(end, around.back()) << event;
    }
    around.push_back(end);
  }
  for (const auto& track : used) EXPECT_TRUE(named.contains(track)) << track.second;
  for (const auto& [id, balance] : pairs) EXPECT_EQ(balance, 0) << id;
}

std::map<std::string, int> names_of(const Json& trace, int process) {
  std::map<std::string, int> names;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("pid") == process && event.at("ph") != "M") ++names[event.at("name")];
  }
  return names;
}

TEST(Timeline, OfAGenerationIsValidAndComplete) {
  const auto engine = tiny_engine(1);
  engine->timeline = std::make_unique<Timeline>(*engine->runtime, 64);
  const Request one = request(24, 3);
  generate(*engine, {&one, 1});
  const Json trace = Json::parse(trace_json(*engine->timeline, "a \"model\""));
  expect_valid(trace);
  EXPECT_EQ(trace.at("otherData").at("model"), "a \"model\"");

  auto engine_names = names_of(trace, 1);
  EXPECT_GT(engine_names["step"], 5);
  EXPECT_EQ(engine_names["round"], engine_names["step"]);
  EXPECT_EQ(engine_names["drafts"], engine_names["step"]);
  EXPECT_GT(engine_names["draft"], 0);
  auto request_names = names_of(trace, 2);
  EXPECT_EQ(request_names["request 1"], 1);
  EXPECT_EQ(request_names["prompt"], 1);
  EXPECT_EQ(request_names["output"], 1);
  auto runtime_names = names_of(trace, 3);
  EXPECT_EQ(runtime_names["extend"], engine_names["step"]);
  EXPECT_EQ(runtime_names["draft"], engine_names["draft"]);
  EXPECT_GT(runtime_names["mamba scan"], 0);
  EXPECT_EQ(runtime_names["mamba scan"] % 2, 0);  // two threads
  EXPECT_GT(runtime_names["draft: lm_head"], 0);
}

TEST(Timeline, AcceptanceCountersAddUp) {
  const auto engine = tiny_engine(1);
  engine->timeline = std::make_unique<Timeline>(*engine->runtime, 64);
  const Request one = request(24, 3);
  const Result result = generate(*engine, {&one, 1}).front();
  int64_t accepted = 0;
  int64_t rejected = 0;
  const Json trace = Json::parse(trace_json(*engine->timeline, "m"));
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("name") != "drafts") continue;
    accepted += event.at("args").at("accepted").get<int64_t>();
    rejected += event.at("args").at("rejected").get<int64_t>();
  }
  EXPECT_EQ(accepted, result.speculation.num_accepted_tokens);
  EXPECT_EQ(accepted + rejected, result.speculation.num_draft_tokens);
}

TEST(Timeline, OfManyRequestsNestsBySlot) {
  const auto engine = tiny_engine(2);
  engine->timeline = std::make_unique<Timeline>(*engine->runtime, 1024);
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i) requests.push_back(request(4 + 3 * i, i % 3));
  generate(*engine, requests);
  const Json trace = Json::parse(trace_json(*engine->timeline, "m"));
  expect_valid(trace);
  auto names = names_of(trace, 2);
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(names["request " + std::to_string(i)], 1);
  EXPECT_GT(names["queued"], 0);  // pairs of those that waited
}

TEST(Timeline, PreemptedRequestsHaveTwoSlices) {
  const auto engine = tiny_engine(1);
  engine->timeline = std::make_unique<Timeline>(*engine->runtime, 1024);
  {
    Scheduler scheduler(*engine, {});
    scheduler.submit({.request = request(12, 0), .priority = 1});
    for (int i = 0; i < 4; ++i) scheduler.step();
    scheduler.submit({.request = request(3, 0), .priority = 0});
    scheduler.drain();
    scheduler.run();
  }
  const Json trace = Json::parse(trace_json(*engine->timeline, "m"));
  expect_valid(trace);
  auto names = names_of(trace, 2);
  EXPECT_EQ(names["request 1"], 2);
  EXPECT_EQ(names["request 2"], 1);
}

TEST(Timeline, KeepsTheLastStepsOnly) {
  const auto engine = tiny_engine(1);
  engine->timeline = std::make_unique<Timeline>(*engine->runtime, 4);
  const Request one = request(24, 2);
  generate(*engine, {&one, 1});
  const Json trace = Json::parse(trace_json(*engine->timeline, "m"));
  expect_valid(trace);
  EXPECT_EQ(names_of(trace, 1)["step"], 4);
  EXPECT_LE(names_of(trace, 3)["extend"], 8);
}

TEST(Timeline, DoesNotChangeTokensAndSaysWhereThreadsWait) {
  const auto engine = tiny_engine(1);
  const Request one = request(16, 2);
  const auto plain = generate(*engine, {&one, 1}).front().tokens;
  engine->timeline = std::make_unique<Timeline>(*engine->runtime, 64);
  EXPECT_EQ(generate(*engine, {&one, 1}).front().tokens, plain);
  EXPECT_THAT(waiting_text(*engine->timeline->phases()), ::testing::HasSubstr("most waiting: "));
  engine->timeline.reset();
  EXPECT_EQ(generate(*engine, {&one, 1}).front().tokens, plain);
}

TEST(Timeline, ReplacesAFileOnlyWhenToldTo) {
  const test::TempFolder folder;
  const auto engine = tiny_engine(1);
  const Timeline timeline(*engine->runtime, 4);
  write_trace(timeline, "m", folder / "trace.json", Existing::kRefuse);
  expect_valid(read_json(folder / "trace.json"));  // no steps, and valid
  EXPECT_THROW(write_trace(timeline, "m", folder / "trace.json", Existing::kRefuse), Error);
  EXPECT_NO_THROW(write_trace(timeline, "m", folder / "trace.json", Existing::kReplace));
}

}  // namespace
}  // namespace levin::engine
