#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/client/summary.h"

namespace levin::bench::client {
namespace {

using testing::ElementsAre;

RequestRecord record(double sent, double first, double last, int64_t output) {
  RequestRecord result;
  result.due = sent;
  result.sent = sent;
  result.outputs = {first, last};
  result.last = last;
  result.ended = last;
  result.usage = TokenUsage{.prompt = 10, .output = output, .cached = 0};
  return result;
}

PointRound round_of(std::vector<RequestRecord> records) {
  PointRound round;
  round.load.records = std::move(records);
  return round;
}

constexpr std::array<double, 2> kPercents = {50, 99};

TEST(Summary, PercentilesAreNumpys) {
  const std::vector<double> values = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile(values, 90), 3.7);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 4);
  EXPECT_DOUBLE_EQ(percentile(std::vector<double>{5}, 99), 5);
  EXPECT_EQ(distribution_of({}, kPercents).count, 0u);
  EXPECT_TRUE(distribution_of({}, kPercents).percentiles.empty());
}

TEST(Summary, RatesAreOfRoundsAndLatenciesOfAll) {
  const std::vector<PointRound> rounds = {
      round_of({record(0, 1, 3, 5), record(0, 2, 4, 3)}),  // 8 tokens in 4 s
      round_of({record(1, 2, 3, 9)}),                      // 9 in 2
  };
  const PointSummary summary = summarize(rounds, kPercents, {});
  EXPECT_EQ(summary.requests, 3);
  EXPECT_EQ(summary.failed(), 0);
  EXPECT_DOUBLE_EQ(summary.output_tokens_per_second->min, 2);
  EXPECT_DOUBLE_EQ(summary.output_tokens_per_second->max, 4.5);
  EXPECT_DOUBLE_EQ(summary.total_tokens_per_second->min, 7);
  EXPECT_DOUBLE_EQ(summary.requests_per_second.max, 0.5);
  EXPECT_DOUBLE_EQ(summary.ttft.mean, 4.0 / 3);
  EXPECT_DOUBLE_EQ(summary.tpot.percentiles[0], 0.5);  // 2/4, 2/2, 1/8
  EXPECT_EQ(summary.itl.count, 3u);
  EXPECT_THAT(output_rates(rounds), ElementsAre(2, 4.5));
}

TEST(Summary, FailuresAreCountedByNameAndLeftOut) {
  RequestRecord bad = record(0, 1, 100, 1000);
  bad.error = "HTTP 500";
  const PointSummary summary =
      summarize(std::vector{round_of({record(0, 1, 2, 4), bad, bad})}, kPercents, {});
  EXPECT_EQ(summary.failed(), 2);
  EXPECT_EQ(summary.failures.at("HTTP 500"), 2);
  EXPECT_EQ(summary.output_tokens, 4);
  EXPECT_EQ(summary.ttft.count, 1u);
}

TEST(Summary, OneAnswerWithoutUsageLeavesNoThroughput) {
  RequestRecord unknown = record(0, 1, 2, 4);
  unknown.usage.reset();
  const PointSummary summary =
      summarize(std::vector{round_of({record(0, 1, 2, 4), unknown})}, kPercents, {});
  EXPECT_EQ(summary.without_usage, 1);
  EXPECT_FALSE(summary.output_tokens_per_second.has_value());
  EXPECT_DOUBLE_EQ(summary.requests_per_second.median, 1);
}

TEST(Summary, GoodRequestsKeepEveryLimit) {
  const std::vector<PointRound> rounds = {
      round_of({record(0, 1, 3, 5), record(0, 2, 4, 3), record(0, 1, 4, 2)})};
  const auto good = [&](const Goodput& goodput) {
    return summarize(rounds, kPercents, goodput).good_per_second->median * 4;
  };
  EXPECT_DOUBLE_EQ(good({.ttft = 1, .tpot = {}, .e2e = {}}), 2);
  EXPECT_DOUBLE_EQ(good({.ttft = 1, .tpot = 0.5, .e2e = {}}), 1);
  EXPECT_DOUBLE_EQ(good({.ttft = {}, .tpot = {}, .e2e = 3.5}), 1);
  EXPECT_FALSE(summarize(rounds, kPercents, {}).good_per_second.has_value());
}

TEST(Summary, CachedTokensComeFromUsageOrElseFromCounters) {
  RequestRecord cached = record(0, 1, 2, 4);
  cached.usage->cached = 6;
  std::vector<PointRound> rounds = {round_of({cached, cached})};
  rounds[0].counters = ServerCounters{};
  rounds[0].counters->prefix_hits = 3;
  EXPECT_EQ(summarize(rounds, kPercents, {}).cached_tokens, 12);
  for (RequestRecord& each : rounds[0].load.records) each.usage->cached.reset();
  EXPECT_EQ(summarize(rounds, kPercents, {}).cached_tokens, 3);
  rounds[0].counters.reset();
  EXPECT_EQ(summarize(rounds, kPercents, {}).cached_tokens, std::nullopt);
}

}  // namespace
}  // namespace levin::bench::client
