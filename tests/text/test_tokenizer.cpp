// What must hold for every text: round trips, streams, special tokens, speed that does not
// collapse.
#include <gtest/gtest.h>

#include <ctime>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "text/tiny_tokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace levin::text {
namespace {

using Ids = std::vector<int32_t>;

std::string random_text(std::mt19937_64& random, std::size_t characters) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0x00, 0x7F},   {0x20, 0x7E},     {0x61, 0x7A},     {0x80, 0x24F},       {0x300, 0x36F},
      {0x400, 0xFFF}, {0x1000, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}, {0x1F300, 0x1FAFF}};
  std::string text;
  for (std::size_t i = 0; i < characters; ++i) {
    const auto [low, high] = kRanges[random() % std::size(kRanges)];
    append_utf8(text, low + static_cast<char32_t>(random() % (high - low + 1)));
  }
  return text;
}

TEST(Tokenizer, DecodesWhatItEncoded) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_text(random, random() % 40);
    EXPECT_EQ(tiny_tokenizer().decode(tiny_tokenizer().encode(text)), text);
    EXPECT_EQ(tiny_tokenizer().decode(tiny_tokenizer().encode(text, false)), text);
  }
}

TEST(Tokenizer, DecodesWhatItEncodedOfItsOwnSource) {
  const std::string text =
      read_text(std::filesystem::path(LEVIN_SOURCE_DIR) / "src/text/tokenizer.cpp");
  EXPECT_EQ(tiny_tokenizer().decode(tiny_tokenizer().encode(text)), text);
}

// Any ids, also those that cut characters apart.
Ids random_ids(std::mt19937_64& random, std::size_t count) {
  Ids ids;
  for (std::size_t i = 0; i < count; ++i) {
    const bool byte = random() % 2 == 0;  // single bytes stand first in the vocabulary
    ids.push_back(static_cast<int32_t>(byte ? 32 + random() % 256 : random() % 4096));
  }
  return ids;
}

void check_stream(const Ids& ids, bool skip_special) {
  for (std::size_t length = 0; length <= ids.size(); ++length) {
    StreamDecoder decoder(tiny_tokenizer(), skip_special);
    std::string text;
    for (std::size_t i = 0; i < length; ++i) {
      const std::string piece = decoder.push(ids[i]);
      EXPECT_FALSE(find_invalid_utf8(piece)) << "a piece is not whole characters";
      text += piece;
    }
    text += decoder.finish();
    EXPECT_EQ(decoder.finish(), "");
    const std::string whole = tiny_tokenizer().decode({ids.data(), length}, skip_special);
    EXPECT_EQ(text, to_valid_utf8(whole));
  }
}

TEST(StreamDecoder, GivesTheSameTextAsDecode) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 300; ++i) check_stream(random_ids(random, random() % 24), i % 2 == 0);
  for (int i = 0; i < 100; ++i)
    check_stream(tiny_tokenizer().encode(random_text(random, 12)), true);
}

TEST(StreamDecoder, ShowsTheSpecialTokensThatAreAskedFor) {
  const Tokenizer& tokenizer = tiny_tokenizer();
  const int32_t shown = tokenizer.find("</think>").value();
  StreamDecoder decoder(tokenizer, true, {shown});
  std::string text;
  for (const int32_t id : tokenizer.encode("a<|im_end|></think>b")) text += decoder.push(id);
  EXPECT_EQ(text + decoder.finish(), "a</think>b");
}

TEST(StreamDecoder, KeepsHalfACharacterBack) {
  const Ids ids = tiny_tokenizer().encode("😀");
  ASSERT_GT(ids.size(), 1U);
  StreamDecoder decoder(tiny_tokenizer());
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(decoder.push(ids[i]), "");
  EXPECT_EQ(decoder.push(ids.back()), "😀");
  decoder.push(ids.front());
  EXPECT_EQ(decoder.finish(), "\uFFFD");
}

TEST(Tokenizer, TreatsAddedTokensAsAsked) {
  const Tokenizer& tokenizer = tiny_tokenizer();
  EXPECT_EQ(tokenizer.encode("<|im_end|>"), Ids{11});
  const Ids plain = tokenizer.encode("<|im_end|>", false);
  EXPECT_GT(plain.size(), 1U);
  EXPECT_EQ(tokenizer.decode(plain, true), "<|im_end|>");
  EXPECT_EQ(tokenizer.decode(Ids{11, 71}, true), "H");
  EXPECT_EQ(tokenizer.decode(Ids{11, 71}), "<|im_end|>H");
  for (int32_t id = 0; id < 32; ++id) {
    EXPECT_TRUE(tokenizer.is_special(id));
    const std::string content(tokenizer.bytes_of(id));
    EXPECT_EQ(tokenizer.find(content), id);
    for (const int32_t part : tokenizer.encode(content, false)) {
      EXPECT_FALSE(tokenizer.is_special(part)) << content;
    }
  }
  EXPECT_FALSE(tokenizer.is_special(71));
}

TEST(Tokenizer, NeverMakesASpecialTokenOfPlainText) {
  // Even where a whole word is looked up first and the word is a special token.
  nlohmann::json document = tiny_json();
  document["added_tokens"].push_back({{"id", document["model"]["vocab"]["ing"]},
                                      {"content", "ing"},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", true}});
  document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\S+|\\s+";
  document["model"]["merges"] = nlohmann::json::array();
  const Tokenizer tokenizer = Tokenizer::parse(document.dump(), "test");
  EXPECT_EQ(tokenizer.encode("ing").size(), 1U);
  EXPECT_EQ(tokenizer.encode("ing", false).size(), 3U);
}

TEST(Tokenizer, KnowsItsVocabulary) {
  const Tokenizer& tokenizer = tiny_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 4096);
  EXPECT_EQ(tokenizer.find("<|im_start|>"), 10);
  EXPECT_EQ(tokenizer.find("H"), 71);
  ASSERT_TRUE(tokenizer.find(" the"));
  EXPECT_EQ(tokenizer.bytes_of(*tokenizer.find(" the")), " the");
  EXPECT_FALSE(tokenizer.find("no token has so long a content as this"));
  EXPECT_FALSE(tokenizer.find(""));
}

TEST(Tokenizer, RefusesIdsOutOfRange) {
  for (const int32_t id : {-1, 4096, INT32_MAX, INT32_MIN}) {
    EXPECT_THROW((void)tiny_tokenizer().decode(Ids{71, id}), Error) << id;
    EXPECT_THROW((void)tiny_tokenizer().bytes_of(id), Error) << id;
    EXPECT_THROW((void)tiny_tokenizer().is_special(id), Error) << id;
    StreamDecoder decoder(tiny_tokenizer());
    EXPECT_THROW((void)decoder.push(id), Error) << id;
  }
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  for (const std::string_view tail : {"\xFF", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                      "\xE2\x82", "\x80", "\xF8\x88\x80\x80\x80"}) {
    try {
      (void)tiny_tokenizer().encode("abc" + std::string(tail));
      FAIL() << "encoded";
    } catch (const Error& error) {
      EXPECT_EQ(error.parts().what, "text is not UTF-8");
      EXPECT_EQ(error.parts().where, "byte 3 of the text");
    }
  }
}

// A quadratic algorithm would take minutes on these.
TEST(Tokenizer, StaysFastOnLongRuns) {
  const std::clock_t begin = std::clock();
  std::string pairs;
  while (pairs.size() < 300'000) pairs += "ab";
  for (const std::string& text :
       {std::string(300'000, 'a'), std::string(300'000, 'A'), std::string(300'000, ' '),
        std::string(300'000, ' ') + "x", std::string(300'000, '<'), std::string(300'000, '\n'),
        std::string(300'000, '7'), pairs}) {
    EXPECT_EQ(tiny_tokenizer().decode(tiny_tokenizer().encode(text)), text);
  }
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 30);
}

TEST(Tokenizer, IsEndedByItsInterrupt) {
  std::string words;
  for (int i = 0; i < 5000; ++i) words += "one ";
  const auto stop = [] { throw 1; };
  for (const std::string& text : {words, std::string(1000, ' ')}) {
    EXPECT_THROW(static_cast<void>(tiny_tokenizer().encode(text, true, stop)), int);
  }
  int calls = 0;
  EXPECT_EQ(tiny_tokenizer().encode(words, true, [&] { ++calls; }), tiny_tokenizer().encode(words));
  EXPECT_GT(calls, 1);
}

TEST(Tokenizer, SaysHowMuchTextATokenCanBe) {
  EXPECT_EQ(tiny_tokenizer().longest_token_bytes(), 32);
  // What is shortened or left out stands for text of any length.
  nlohmann::json composing = tiny_json();
  composing["normalizer"] = {{"type", "NFC"}};
  nlohmann::json stripping = tiny_json();
  stripping["added_tokens"][0]["rstrip"] = true;
  nlohmann::json dropping = tiny_json();
  dropping["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  for (const nlohmann::json& document : {composing, stripping, dropping}) {
    EXPECT_EQ(Tokenizer::parse(document.dump(), "t").longest_token_bytes(), std::nullopt);
  }
}

TEST(Tokenizer, ServesThreadsAtOnce) {
  const std::string text = read_text(test_data() / "goldens/tokenizer_goldens.json");
  const Ids expected = tiny_tokenizer().encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  for (Ids& result : results) {
    threads.emplace_back([&] { result = tiny_tokenizer().encode(text); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace levin::text
