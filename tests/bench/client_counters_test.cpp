#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/client/counters.h"

namespace levin::bench::client {
namespace {

using testing::ElementsAre;

constexpr const char* kBefore =
    "# HELP vllm:spec_decode_num_drafts_total Rounds\n"
    "# TYPE vllm:spec_decode_num_drafts_total counter\n"
    "vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"a b\"} 10\n"
    "vllm:spec_decode_num_draft_tokens_total{engine=\"0\"} 30\n"
    "vllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} 12\n"
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"0\"} 8\n"
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"1\"} 4\n"
    "vllm:generation_tokens_total 1.5e3\n"
    "vllm:prompt_tokens_total NaN\n";

TEST(Counters, AreReadBehindAnyPrefixAndAddedOverEngines) {
  const ServerCounters counters =
      parse_counters(std::string(kBefore) +
                     "vllm:spec_decode_num_drafts_total{engine=\"1\"} 5\n"
                     "levin:prompt_tokens_cached_total 3");
  EXPECT_EQ(counters.drafts, 15);
  EXPECT_EQ(counters.draft_tokens, 30);
  EXPECT_EQ(counters.generated_tokens, 1500);
  EXPECT_EQ(counters.prompt_tokens, std::nullopt);
  EXPECT_EQ(counters.cached_tokens, 3);
  EXPECT_EQ(counters.preemptions, std::nullopt);
}

TEST(Counters, DifferenceGivesAcceptance) {
  ServerCounters after = parse_counters(kBefore);
  *after.drafts += 100;
  *after.draft_tokens += 300;
  *after.accepted += 120;
  after.accepted_at[0] += 70;
  after.accepted_at[1] += 30;
  after.accepted_at[2] += 20;  // a place that was never reached before
  ServerCounters counted = difference(parse_counters(kBefore), after);
  EXPECT_EQ(counted.draft_tokens, 300);
  EXPECT_DOUBLE_EQ(*counted.acceptance_length(), 2.2);
  EXPECT_THAT(counted.accepted_per_position(), ElementsAre(0.7, 0.3, 0.2));
  EXPECT_EQ(counted.generated_tokens, 0);
  counted.add(counted);
  EXPECT_DOUBLE_EQ(*counted.acceptance_length(), 2.2);
  EXPECT_EQ(counted.drafts, 200);
}

TEST(Counters, NothingDraftedIsNoAcceptance) {
  const ServerCounters same = difference(parse_counters(kBefore), parse_counters(kBefore));
  EXPECT_EQ(same.acceptance_length(), std::nullopt);
  EXPECT_TRUE(same.accepted_per_position().empty());
  EXPECT_EQ(parse_counters("").acceptance_length(), std::nullopt);
}

TEST(Counters, PositionsThatNoDraftHasAreSkipped) {
  const std::string name = "v:spec_decode_num_accepted_tokens_per_pos_total";
  const ServerCounters counters =
      parse_counters(name + "{position=\"3\"} 1\n" + name + "{position=\"2000000000\"} 1\n");
  EXPECT_EQ(counters.accepted_at.size(), 1u);
}

TEST(Counters, LinesThatAreNoneAreSkipped) {
  const ServerCounters counters = parse_counters(
      "\n{\n}\nx\nx{\nx{} \nx 1 2\nx{a=\"}\"} 7\n"
      "levin:generation_tokens_total{a=\"}\"} 4 1700000000\n"
      "levin:spec_decode_num_accepted_tokens_per_pos_total{position=\"x\"} 3\n"
      "levin:spec_decode_num_accepted_tokens_per_pos_total{position=\"-1\"} 3\n");
  EXPECT_EQ(counters.generated_tokens, 4);
  EXPECT_TRUE(counters.accepted_at.empty());
}

}  // namespace
}  // namespace levin::bench::client
