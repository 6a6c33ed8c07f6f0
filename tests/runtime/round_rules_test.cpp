// The rules of a round that host and devices share (runtime/round_rules.h).
#include "runtime/round_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace levin::runtime {
namespace {

using ::testing::ElementsAreArray;

RoundSequence sequence(int32_t remaining, std::vector<int32_t> stops = {}) {
  RoundSequence s;
  s.active = 1;
  s.last_token = 100;
  s.length = 10;
  s.committed = 7;
  s.parity = 1;
  s.remaining = remaining;
  s.stop_count = static_cast<int32_t>(stops.size());
  std::copy(stops.begin(), stops.end(), s.stops);
  return s;
}

std::vector<int32_t> tokens_of(const Block& block) {
  return {block.tokens, block.tokens + block.count};
}

struct Example {
  std::vector<int32_t> drafts, chosen, tokens;
  int accepted;
  RoundEnd end;
  int32_t remaining = 50;
  std::vector<int32_t> stops = {};
};

TEST(RoundRules, AcceptBlock) {
  const std::vector<Example> examples = {
      {{}, {5}, {5}, 0, RoundEnd::kGoesOn},
      {{1, 2, 3}, {9, 0, 0, 0}, {9}, 0, RoundEnd::kGoesOn},
      {{1, 2, 3}, {1, 9, 3, 4}, {1, 9}, 1, RoundEnd::kGoesOn},
      {{1, 2, 3}, {1, 2, 3, 4}, {1, 2, 3, 4}, 3, RoundEnd::kGoesOn},
      // Stops: a draft, a token in a draft's place, the token after all drafts.
      {{1, 2, 3}, {1, 2, 3, 4}, {1, 2}, 2, RoundEnd::kStop, 50, {7, 2}},
      {{1, 2, 3}, {1, 7, 3, 4}, {1, 7}, 1, RoundEnd::kStop, 50, {7, 2}},
      {{1, 2, 3}, {1, 2, 3, 4}, {1, 2, 3, 4}, 3, RoundEnd::kStop, 50, {4}},
      // A stop that was drafted but not chosen is none.
      {{1, 2, 3}, {1, 8, 3, 4}, {1, 8}, 1, RoundEnd::kGoesOn, 50, {2}},
      // Lengths; a stop token comes before a length.
      {{1}, {1, 2}, {1, 2}, 1, RoundEnd::kLength, 2},
      {{1}, {5, 2}, {5}, 0, RoundEnd::kLength, 1},
      {{1}, {1, 2}, {1, 2}, 1, RoundEnd::kStop, 2, {2}},
      // No numbers, at once or behind an accepted draft.
      {{1}, {-1, 2}, {}, 0, RoundEnd::kNotANumber},
      {{1}, {1, -1}, {1}, 1, RoundEnd::kNotANumber}};
  for (const Example& e : examples) {
    RoundSequence s = sequence(e.remaining, e.stops);
    const auto drafts = static_cast<int32_t>(e.drafts.size());
    const Block block = accept_block(s, e.drafts.data(), drafts, e.chosen.data());
    EXPECT_THAT(tokens_of(block), ElementsAreArray(e.tokens));
    EXPECT_EQ(block.accepted, e.accepted);
    EXPECT_EQ(block.drafts, drafts);
    EXPECT_EQ(block.end, e.end);
    EXPECT_EQ(s.active, e.end == RoundEnd::kGoesOn ? 1 : 0);
    EXPECT_EQ(s.remaining, e.remaining - block.count);
    // The block's inputs are in the other half of the log; its accepted part stays.
    EXPECT_EQ(s.committed, 10);
    EXPECT_EQ(s.length, 10 + block.count);
    EXPECT_EQ(s.parity, 0);
    EXPECT_EQ(s.last_token, e.tokens.empty() ? 100 : e.tokens.back());
  }
}

TEST(RoundRules, DraftsNeverGoBeyondTheEnd) {
  for (int32_t remaining = 1; remaining < 12; ++remaining) {
    for (int32_t most = 0; most <= 7; ++most) {
      const int32_t drafts = drafts_of(sequence(remaining), most);
      EXPECT_EQ(drafts, std::min(most, remaining - 1));
    }
  }
  RoundSequence ended = sequence(10);
  ended.active = 0;
  EXPECT_EQ(drafts_of(ended, 7), 0);
}

TEST(RoundRules, SyntheticAcceptanceIsThatOfItsPosition) {
  RoundSequence s = sequence(1 << 30);
  s.synthetic = 1;
  s.rates[0] = 0.7;
  s.rates[1] = 0.5;
  s.sampling.seed = 5;
  const std::vector<int32_t> drafts = {1, 2};
  const std::vector<int32_t> chosen = {8, 9, 10};  // never what was drafted
  int first = 0;
  int both = 0;
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round) {
    const RoundSequence before = s;
    const Block block = accept_block(s, drafts.data(), 2, chosen.data());
    EXPECT_EQ(block.accepted >= 1,
              uniform(5, int64_t{before.length} + 1, Purpose::kSyntheticAcceptance) <= 0.7);
    EXPECT_EQ(block.count, 1 + block.accepted);
    EXPECT_EQ(block.tokens[block.accepted], chosen[static_cast<std::size_t>(block.accepted)]);
    first += block.accepted >= 1 ? 1 : 0;
    both += block.accepted == 2 ? 1 : 0;
  }
  EXPECT_NEAR(first, 0.7 * kRounds, 300);
  EXPECT_NEAR(both, 0.35 * kRounds, 300);
}

TEST(RoundRules, UsesHaveTheirOwnNumbers) {
  EXPECT_NE(uniform(1, 2, Purpose::kToken), uniform(1, 2, Purpose::kSyntheticAcceptance));
  EXPECT_NE(uniform(1, 2, Purpose::kToken), uniform(1, 3, Purpose::kToken));
  EXPECT_NE(uniform(1, 2, Purpose::kToken), uniform(2, 2, Purpose::kToken));
  // Usable when compiling, so that no device needs a version of its own.
  static_assert(uniform(1, 2, Purpose::kToken) > 0 && uniform(1, 2, Purpose::kToken) <= 1);
}

TEST(RoundRules, MinPNeverCutsTheBestToken) {
  EXPECT_EQ(min_p_cut(std::log(0.5), 2.0F), static_cast<float>(2.0 + std::log(0.5)));
  EXPECT_EQ(min_p_cut(0.0, 2.0F), 2.0F);
  EXPECT_EQ(min_p_cut(-std::numeric_limits<double>::infinity(), 2.0F),
            -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace levin::runtime
