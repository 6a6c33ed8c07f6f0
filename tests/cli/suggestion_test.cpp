#include "cli/suggestion.h"

#include <gtest/gtest.h>

#include <vector>

namespace levin::cli {
namespace {

const std::vector<std::string> kFlags = {"--max-tokens", "--max-num-seqs", "--min-tokens", "--seed",
                                         "--help"};

TEST(SuggestionTest, FindsTypingMistakes) {
  EXPECT_EQ(nearest("--max-token", kFlags), "--max-tokens");
  EXPECT_EQ(nearest("--max_tokens", kFlags), "--max-tokens");
  EXPECT_EQ(nearest("--mxa-tokens", kFlags), "--max-tokens");
  EXPECT_EQ(nearest("--mni-tokens", kFlags), "--min-tokens");  // nearer than --max-tokens
  EXPECT_EQ(nearest("--sede", kFlags), "--seed");              // one swap
}

TEST(SuggestionTest, DoesNotGuessWildly) {
  EXPECT_EQ(nearest("--rope-theta", kFlags), "");
  EXPECT_EQ(nearest("-x", kFlags), "");
  EXPECT_EQ(nearest("", kFlags), "");
  EXPECT_EQ(nearest("--seed", {}), "");
}

}  // namespace
}  // namespace levin::cli
