#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cctype>
#include <cstdio>
#include <ctime>
#include <set>
#include <string>

#include "core/error.h"
#include "grammar_support.h"
#include "tiny_tokenizer.h"

namespace levin::text::grammar {
namespace {

TEST(TokenTrie, HoldsTheTokensInTheOrderOfTheWalk) {
  const std::vector<std::string> bytes = {"b", "ab", "a", "abc", "b", "ca"};
  const TokenTrie trie(bytes, {0, 1, 2, 3, 4, 5});
  EXPECT_THAT(trie.tokens(), testing::ElementsAre(2, 1, 3, 0, 4, 5));
  EXPECT_EQ(trie.max_depth(), 3);
  ASSERT_EQ(trie.nodes().size(), 7u);  // a ab abc b c ca, and the one behind
  const auto& a = trie.nodes()[trie.child_of_root('a')];
  EXPECT_EQ(a.behind, 3u);
  EXPECT_EQ(a.depth, 1);
  EXPECT_EQ(trie.nodes()[trie.child_of_root('c')].behind, 6u);
  EXPECT_EQ(trie.child_of_root('x'), 6u);
}

TEST(TokenVocabulary, RefusesStopTokensItDoesNotHave) {
  EXPECT_THROW(TokenVocabulary({{"a", false}}, {1}), Error);
  EXPECT_THROW(TokenVocabulary({{"a", false}}, {-1}), Error);
}

TEST(GrammarMatcher, FollowsTheBundledTokenizer) {
  const Tokenizer& tokenizer = tiny_tokenizer();
  const int32_t stop = tokenizer.find("<|im_end|>").value();
  const auto vocabulary = TokenVocabulary::of(tokenizer, {stop});
  const auto grammar = Grammar::json_schema(
      Json::parse(R"({"type": "object", "properties": {"name": {"type": "string"},
                      "age": {"type": "integer"}}, "required": ["name", "age"]})"),
      {.until = "</think>", .never = {}});
  GrammarMatcher matcher(grammar, vocabulary);
  TokenMask mask(vocabulary->mask_words() + 1, ~uint64_t{0});
  for (const int32_t token :
       tokenizer.encode("Let me <think>.\n</think>\n{\"name\": \"Ada \\\"L\\\" "
                        "\u00e9\", \"age\": 36}")) {
    const bool think = tokenizer.bytes_of(token) == "<think>";
    matcher.allowed(mask);
    EXPECT_EQ(is_allowed(mask, token), !think);
    EXPECT_EQ(matcher.accept(token), !think);
    EXPECT_EQ(is_allowed(mask, stop), false);
    EXPECT_EQ(mask.back(), 0u);
  }
  EXPECT_TRUE(matcher.is_complete());
  matcher.allowed(mask);
  std::size_t allowed = 0;
  for (const uint64_t word : mask) allowed += static_cast<std::size_t>(std::popcount(word));
  EXPECT_EQ(allowed, 1u);
  EXPECT_TRUE(is_allowed(mask, stop));
}

TEST(GrammarMatcher, NothingComesBehindAStopTokenButStopTokens) {
  Matcher matcher(Grammar::json_object(), small_vocabulary());
  EXPECT_FALSE(matcher.accept(kStopToken));
  EXPECT_FALSE(matcher.rollback(1));
  ASSERT_TRUE(matcher.accept('{') && matcher.accept('}') && matcher.accept(kStopToken));
  EXPECT_TRUE(matcher.finished() && matcher.is_complete());
  EXPECT_FALSE(matcher.accept(' '));
  EXPECT_TRUE(matcher.accept(kStopToken));
  EXPECT_FALSE(matcher.accept(-1));
  EXPECT_FALSE(matcher.accept(100000));
  EXPECT_EQ(matcher.size(), 4u);
  EXPECT_TRUE(matcher.rollback(3));
  EXPECT_FALSE(matcher.finished());
  EXPECT_TRUE(matcher.accept('"'));
}

TEST(GrammarMatcher, JsonObjectsAreObjects) {
  const auto grammar = Grammar::json_object();
  EXPECT_TRUE(accepts(grammar, R"( {"a": [1, {"b": null}], "\u00e9": "x"})"));
  EXPECT_FALSE(accepts(grammar, "[]"));
  EXPECT_FALSE(accepts(grammar, "1"));
}

TEST(GrammarMatcher, RefusesMarkersItCannotFollow) {
  EXPECT_THROW((void)Grammar::json_object({.until = "think", .never = {}}), Error);
  EXPECT_THROW((void)Grammar::json_object({.until = "<\xc3\xa9>", .never = {}}), Error);
  EXPECT_THROW((void)Grammar::json_object({.until = "</think>", .never = {""}}), Error);
}

// A long output through ever new situations: memory stays bounded, and so does what can be rolled
// back.
TEST(GrammarMatcher, ForgetsWhatIsLongAgo) {
  Matcher matcher(Grammar::json_object(), small_vocabulary());
  const auto feed = [&](std::string_view text) {
    for (const char c : text) ASSERT_TRUE(matcher.accept(static_cast<uint8_t>(c)));
  };
  constexpr int kLevels = 40000;
  for (int i = 0; i < kLevels; ++i) feed(i % 2 == 0 ? "{\"a\":" : "[{\"b\":1},");
  EXPECT_FALSE(matcher.rollback(matcher.size() - 1)) << "nothing was forgotten";
  EXPECT_TRUE(matcher.rollback(Matcher::kMaxRollback));
  const TokenMask mask = mask_of(matcher);
  int allowed = 0;
  for (const uint64_t word : mask) allowed += std::popcount(word);
  EXPECT_GT(allowed, 0);
}

// A vocabulary like those of 131072 tokens: words with and without a space in front, pieces with
// quotes and brackets, runs of spaces, digits, and parts of characters.
std::shared_ptr<const TokenVocabulary> large_vocabulary() {
  std::mt19937 random(1);
  std::vector<TokenVocabulary::Token> tokens;
  std::set<std::string> seen;
  const auto add = [&](const std::string& bytes, bool special = false) {
    if (seen.insert(bytes).second) tokens.push_back({bytes, special});
  };
  for (const char* special :
       {"<unk>", "</s>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"}) {
    add(special, true);
  }
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (std::size_t n = 2; n <= 128; ++n) add(std::string(n, ' '));
  const char* marks[] = {"\"", "\":", "\",", "\"}", "{\"", "[\"", "\\", "\\n", "<", "</", ">", ".",
                         ",",  ";",   "(",   ")",   "=",   "-",   "/",  "'",   "_", "\n", "\t"};
  constexpr std::size_t kSize = 131072;
  while (tokens.size() < kSize) {
    std::string word;
    const unsigned kind = static_cast<unsigned>(random() % 100);
    const std::size_t length = 1 + random() % 11;
    for (std::size_t i = 0; i < length; ++i) {
      if (kind < 70) {
        word +=
            static_cast<char>("etaoinshrdlucmfwypvbgkqjxz"[std::min(random() % 26, random() % 26)]);
      } else if (kind < 92) {  // two bytes each
        word += static_cast<char>(0xD0 + random() % 2);
        word += static_cast<char>(0x80 + random() % 64);
      } else if (i < 3) {  // three bytes each
        word += static_cast<char>(0xE3 + random() % 6);
        word += static_cast<char>(0x80 + random() % 64);
        word += static_cast<char>(0x80 + random() % 64);
      }
    }
    if (kind > 96) word.pop_back();
    if (kind < 50 && random() % 2 == 0) word[0] = static_cast<char>(std::toupper(word[0]));
    if (random() % 100 < 45) word.insert(0, " ");
    if (random() % 100 < 3) word.insert(0, marks[random() % std::size(marks)]);
    if (random() % 100 < 3) word += marks[random() % std::size(marks)];
    add(word);
  }
  return std::make_shared<const TokenVocabulary>(tokens, std::vector<int32_t>{1, 2});
}

// Of processor time, so that other programs do not count.
double microseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

// Prints what masks cost; the bound is wide enough for any machine.
TEST(GrammarMatcher, MasksOfALargeVocabularyAreCheap) {
  double begin = microseconds();
  const auto vocabulary = large_vocabulary();
  std::printf("vocabulary of %d tokens: %.0f ms\n", vocabulary->size(),
              (microseconds() - begin) / 1000);
  begin = microseconds();
  const auto grammar = Grammar::json_schema(Json::parse(R"({"type": "object", "properties": {
      "name": {"type": "string"}, "title": {"type": "string", "maxLength": 40},
      "tags": {"type": "array", "items": {"type": "string"}}, "age": {"type": "integer"},
      "kind": {"enum": ["alpha", "beta", "gamma"]}, "extra": {}},
      "required": ["name", "title", "tags", "age", "kind", "extra"]})"),
                                            {.until = "</think>", .never = {"<tool_call>"}});
  std::printf("grammar of %zu states: %.0f us\n", grammar->automaton().states(),
              (microseconds() - begin));
  const std::string text =
      "I should fill it in: a<b.</think>\n{\"name\": \"Ada Lovelace\", \"title\": \"Countess of "
      "Lovelace \u00e9\", \"tags\": [\"first\", \"programmer\"], \"age\": 36, \"kind\": \"beta\", "
      "\"extra\": {\"deep\": [1, 2.5, {\"x\": \"y\"}]}}";
  GrammarMatcher matcher(grammar, vocabulary);
  TokenMask mask(vocabulary->mask_words());
  std::vector<double> costs;
  double worst = 0;
  std::string worst_at;
  for (std::size_t i = 0; i < text.size(); ++i) {
    begin = microseconds();
    matcher.allowed(mask);
    costs.push_back(microseconds() - begin);
    if (costs.back() > worst) {
      worst = costs.back();
      worst_at = text.substr(0, i);
    }
    const auto byte = static_cast<int32_t>(7 + static_cast<uint8_t>(text[i]));
    ASSERT_TRUE(is_allowed(mask, byte)) << text.substr(0, i);
    ASSERT_TRUE(matcher.accept(byte));
  }
  ASSERT_TRUE(matcher.is_complete());
  std::ranges::sort(costs);
  const auto share = [&](double q) {
    return costs[static_cast<std::size_t>(q * static_cast<double>(costs.size() - 1))];
  };
  std::printf(
      "%zu masks: median %.1f us, 90 %% %.1f us, 99 %% %.1f us, worst %.1f us behind '%s'\n",
      costs.size(), share(0.5), share(0.9), share(0.99), worst,
      worst_at.substr(worst_at.size() - std::min<std::size_t>(12, worst_at.size())).c_str());
  EXPECT_LT(share(0.9), 20000.0);
}

}  // namespace
}  // namespace levin::text::grammar
