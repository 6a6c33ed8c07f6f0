#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "core/error.h"
#include "text/oniguruma.h"
#include "text/pre_tokenizer.h"
#include "text/split_pattern.h"

namespace levin::text {
namespace {

using Words = std::vector<std::string>;

Words split(SplitStage stage, std::string_view text) {
  std::vector<SplitStage> stages;
  stages.push_back(std::move(stage));
  Words words;
  PreTokenizer(stages, text.size()).split(text, [&](std::string_view word) {
    words.emplace_back(word);
  });
  return words;
}

SplitStage regex(std::string_view pattern) {
  return {.pattern = SplitPattern::regex(pattern, "test")};
}

TEST(SplitPattern, CutsAtMatches) {
  EXPECT_EQ(split(regex("\\d+"), "a12b3"), (Words{"a", "12", "b", "3"}));
  EXPECT_EQ(split(regex("x"), "abc"), (Words{"abc"}));
  EXPECT_EQ(split(regex("x"), ""), (Words{}));
  EXPECT_EQ(split({.pattern = SplitPattern::literal("a.", "test")}, "a.bab"), (Words{"a.", "bab"}));
}

TEST(SplitPattern, DropsMatchesOrGaps) {
  SplitStage drop_matches = regex("\\d+");
  drop_matches.drop_matches = true;
  EXPECT_EQ(split(std::move(drop_matches), "a12b3"), (Words{"a", "b"}));
  SplitStage drop_gaps = regex("\\d+");
  drop_gaps.drop_gaps = true;
  EXPECT_EQ(split(std::move(drop_gaps), "a12b3"), (Words{"12", "3"}));
}

TEST(SplitPattern, CutsAtEmptyMatches) {
  EXPECT_EQ(split(regex("(?=[A-Z])"), "aBcDE"), (Words{"a", "Bc", "D", "E"}));
  EXPECT_EQ(split(regex("a*"), "baab"), (Words{"b", "aa", "b"}));
  EXPECT_EQ(split(regex("(?<=1)"), "é1世1"), (Words{"é1", "世1"}));
}

TEST(SplitPattern, AddsASpaceInFront) {
  EXPECT_EQ(split({.pattern = std::nullopt, .add_prefix_space = true}, "ab"), (Words{" ab"}));
  EXPECT_EQ(split({.pattern = std::nullopt, .add_prefix_space = true}, " ab"), (Words{" ab"}));
}

// Time without bound would hang here; the guard gives up after a fraction of a second each.
TEST(SplitPattern, GivesUpOnPatternsThatBacktrackWithoutBound) {
  const std::clock_t begin = std::clock();
  const std::string run = std::string(3'000, 'a') + "!";
  for (const std::string_view pattern :
       {"(a*)*[bc]", "(?:a|aa)+[bc]", "(?:a+)+[bc]", "[ab]*[ac]*[ad]*[ae]*[bc]"}) {
    try {
      (void)split(regex(pattern), run);
      ADD_FAILURE() << pattern << " ended";
    } catch (const Error& error) {
      EXPECT_EQ(error.parts().what, "the split pattern backtracks without bound on this text");
    }
  }
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 30);
}

TEST(SplitPattern, RefusesPatternsOfUnreasonableLength) {
  EXPECT_THROW((void)SplitPattern::regex(std::string(1 << 20, 'a'), "test"), Error);
  EXPECT_THROW((void)SplitPattern::regex("((a{1000}){1000}){1000}", "test"), Error);
  EXPECT_THROW((void)SplitPattern::literal("", "test"), Error);
}

TEST(Oniguruma, KeepsWhatIsCommon) {
  for (const std::string_view pattern :
       {" ?[^a-z]+[\\r\\n/]*|x(?!y)(?<=z)|(?i:'s|'t)|a++|b{1,3}|\\.|\\[|[\\]\\-]",
        "\\p{Lu}\\P{N}\\p{Any}", "{|}|a{|a{x}", "\\d\\D\\t\\x41"}) {
    EXPECT_EQ(oniguruma_to_pcre2(pattern, "test"), pattern);
  }
}

TEST(Oniguruma, RewritesWhatDiffers) {
  EXPECT_EQ(oniguruma_to_pcre2("\\p{Han}\\p{^L}\\P{^Greek}", "test"),
            "\\p{sc:Han}\\P{L}\\p{sc:Greek}");
  EXPECT_EQ(oniguruma_to_pcre2("\\u00e9", "test"), "\\x{00e9}");
  EXPECT_EQ(split(regex("\\s"), "a\xE1\xA0\x8E\x62 c"), (Words{"a\xE1\xA0\x8E\x62", " ", "c"}));
  EXPECT_EQ(split(regex("[^\\s]+"), "ab c"), (Words{"ab", " ", "c"}));
  EXPECT_EQ(split(regex("[^\\S\\n]"), "a \n"), (Words{"a", " ", "\n"}));
}

TEST(Oniguruma, RefusesByName) {
  const std::pair<std::string_view, std::string_view> cases[] = {{"\\w", "\\w"},
                                                                 {"a\\b", "\\b"},
                                                                 {"\\h", "\\h"},
                                                                 {"(a)\\1", "\\1"},
                                                                 {"[[:alpha:]]", "["},
                                                                 {"[a&&b]", "&&"},
                                                                 {"(?<n>a)", "(?<"},
                                                                 {"(*UTF)a", "(*"},
                                                                 {"a{1,2}+", "interval followed"},
                                                                 {"a{2}?", "interval"},
                                                                 {"a{,3}", "without lower"},
                                                                 {"[abc", "without end"},
                                                                 {"\\pL", "braces"},
                                                                 {"\\u12", "\\u"},
                                                                 {"(?m:a)", "(?m"},
                                                                 {"[]a]", "] as the first"},
                                                                 {"\\p{L&}", "\\p{L&}"}};
  for (const auto& [pattern, name] : cases) {
    try {
      (void)oniguruma_to_pcre2(pattern, "test");
      ADD_FAILURE() << pattern << " was accepted";
    } catch (const Error& error) {
      EXPECT_NE(error.parts().found.find(name), std::string::npos)
          << pattern << ": " << error.parts().found;
    }
  }
}

}  // namespace
}  // namespace levin::text
