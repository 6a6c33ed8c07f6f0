#include "evaluate/repetition.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace levin::evaluate {
namespace {

using Tokens = std::vector<int32_t>;

Tokens different(int count, int first = 100) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens repeated(const Tokens& pattern, int tokens) {
  Tokens result;
  for (int i = 0; i < tokens; ++i) {
    result.push_back(pattern[static_cast<std::size_t>(i) % pattern.size()]);
  }
  return result;
}

Tokens operator+(Tokens left, const Tokens& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

TEST(Repetition, NothingInDistinctTokens) {
  EXPECT_FALSE(find_repetition_loop({}));
  EXPECT_FALSE(find_repetition_loop(different(1)));
  EXPECT_FALSE(find_repetition_loop(different(1000)));
}

TEST(Repetition, SpanDecides) {
  EXPECT_FALSE(find_repetition_loop(repeated({7}, 31)));
  EXPECT_TRUE(find_repetition_loop(repeated({7}, 32)));
}

TEST(Repetition, CountDecides) {
  const Tokens pattern = different(20);
  EXPECT_FALSE(find_repetition_loop(repeated(pattern, 60)));  // exactly three times
  EXPECT_TRUE(find_repetition_loop(repeated(pattern, 61)));   // the fourth has begun
}

TEST(Repetition, LongestPattern) {
  EXPECT_TRUE(find_repetition_loop(repeated(different(64), 256)));
  EXPECT_FALSE(find_repetition_loop(repeated(different(65), 260)));
}

TEST(Repetition, ReportsWhere) {
  const Tokens tokens = different(10) + repeated({1, 2, 3}, 40) + different(5, 500);
  const auto loop = find_repetition_loop(tokens);
  ASSERT_TRUE(loop);
  EXPECT_EQ(loop->begin, 10);
  EXPECT_EQ(loop->length, 40);
  EXPECT_EQ(loop->pattern, 3);
}

TEST(Repetition, ListWhoseLinesDifferIsNoLoop) {
  Tokens tokens;
  for (int line = 0; line < 50; ++line) tokens = tokens + Tokens{1, 2, 3, 1000 + line, 4};
  EXPECT_FALSE(find_repetition_loop(tokens));
}

// A loop planted anywhere in random text is found, and the text around it never is one.
TEST(Repetition, PlantedInRandomText) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int32_t> any(0, 4000);
  std::uniform_int_distribution<int> size(1, 64);
  for (int trial = 0; trial < 200; ++trial) {
    Tokens noise(200);
    for (int32_t& token : noise) token = any(random);
    ASSERT_FALSE(find_repetition_loop(noise));
    Tokens pattern(static_cast<std::size_t>(size(random)));
    for (int32_t& token : pattern) token = any(random);
    const int span = std::max(32, static_cast<int>(pattern.size()) * 3 + 1);
    const auto loop = find_repetition_loop(noise + repeated(pattern, span) + noise);
    ASSERT_TRUE(loop);
    EXPECT_GE(loop->length, span);
    EXPECT_LE(loop->pattern, static_cast<int64_t>(pattern.size()));
  }
}

}  // namespace
}  // namespace levin::evaluate
