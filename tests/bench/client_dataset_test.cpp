#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "bench/client/dataset.h"
#include "bench/client/trace.h"
#include "core/error.h"
#include "text/utf8.h"

namespace levin::bench::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr TokenScale kScale{.bytes_per_token = 3, .other_tokens = 10};

fs::path write(const std::string& name, const std::string& text) {
  const fs::path path = fs::path(testing::TempDir()) / name;
  std::ofstream(path) << text;
  return path;
}

DatasetOptions options(const std::string& name) {
  return {.name = name,
          .files = {},
          .input_tokens = 110,
          .output_tokens = 20,
          .prefix_tokens = 40,
          .seed = 1};
}

class Generated : public testing::TestWithParam<const char*> {};

TEST_P(Generated, PromptsHaveAboutTheirLengthAndAreDifferent) {
  const auto dataset = make_dataset(options(GetParam()));
  std::set<std::string> prompts;
  for (int i = 0; i < 200; ++i) {
    const PromptPlan prompt = dataset->prompt(i, kScale);
    EXPECT_GE(prompt.text.size(), 300u);
    EXPECT_LE(prompt.text.size(), 420u);
    EXPECT_EQ(prompt.output_tokens, 20);
    EXPECT_EQ(text::to_valid_utf8(prompt.text), prompt.text);
    prompts.insert(prompt.text);
  }
  EXPECT_GT(prompts.size(), 195u);
  EXPECT_EQ(dataset->size(), 0);
}

TEST_P(Generated, SeedsDecide) {
  DatasetOptions other = options(GetParam());
  other.seed = 2;
  const auto prompt = [](const DatasetOptions& wanted) {
    return make_dataset(wanted)->prompt(3, kScale).text;
  };
  EXPECT_EQ(prompt(options(GetParam())), prompt(options(GetParam())));
  EXPECT_NE(prompt(options(GetParam())), prompt(other));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Generated, testing::Values("text", "random", "sonnet"));

TEST(Dataset, SonnetsShareTheirBeginningAndNoMore) {
  const auto dataset = make_dataset(options("sonnet"));
  const std::string a = dataset->prompt(0, kScale).text;
  const std::string b = dataset->prompt(1, kScale).text;
  std::size_t same = 0;
  while (a[same] == b[same]) ++same;
  EXPECT_GE(same, 120u);  // 40 tokens of 3 bytes
  EXPECT_LE(same, 200u);
}

TEST(Dataset, BundledTextIsProseAndCode) {
  std::string prompts;
  for (int i = 0; i < 50; ++i) prompts += make_dataset(options("text"))->prompt(i, kScale).text;
  EXPECT_THAT(prompts, testing::AllOf(HasSubstr(" he "), HasSubstr("const ")));
  EXPECT_EQ(prompts.find("\"text\":"), prompts.npos);
}

TEST(Dataset, TextIsThatOfTheFiles) {
  DatasetOptions mine = options("text");
  mine.files = {write("a.txt", "one two three four"),
                write("b.jsonl", "{\"text\": \"five six\"}\n")};
  std::istringstream words(make_dataset(mine)->prompt(0, kScale).text);
  for (std::string word; words >> word;) {
    EXPECT_THAT((std::set<std::string>{"one", "two", "three", "four", "five", "six"}),
                testing::Contains(word));
  }
}

TEST(Dataset, TextWithoutBlanksIsCutBetweenCharacters) {
  DatasetOptions mine = options("text");
  std::string text;
  for (int i = 0; i < 500; ++i) text += "\xe6\xbc\xa2";
  mine.files = {write("han.txt", text)};
  for (int i = 0; i < 20; ++i) {
    const std::string prompt = make_dataset(mine)->prompt(i, kScale).text;
    EXPECT_EQ(text::to_valid_utf8(prompt), prompt);
  }
}

TEST(Dataset, UnknownNamesAndTracesWithoutFileAreErrors) {
  EXPECT_THROW(make_dataset(options("sharegpt")), Error);
  EXPECT_THROW(make_dataset(options("trace")), Error);
}

std::string trace_error(const std::string& text) {
  try {
    read_trace(write("bad.jsonl", text), 1);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Trace, MooncakeBlocksAreTheSameTextForTheSameId) {
  DatasetOptions mine = options("trace");
  mine.files = {write(
      "m.jsonl",
      R"({"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]})"
      "\n"
      R"({"timestamp": 3500, "input_length": 1100, "output_length": 6, "hash_ids": [1, 2, 9], "x": 0})"
      "\n")};
  const auto dataset = make_dataset(mine);
  EXPECT_EQ(dataset->size(), 2);
  EXPECT_TRUE(dataset->timed());
  const PromptPlan a = dataset->prompt(0, kScale);
  const PromptPlan b = dataset->prompt(1, kScale);
  EXPECT_EQ(a.at, 0);
  EXPECT_EQ(b.at, 2.5);
  EXPECT_EQ(b.output_tokens, 6);
  EXPECT_NEAR(static_cast<double>(a.text.size()), 1090 * 3.0, 100);
  std::size_t same = 0;
  while (same < a.text.size() && a.text[same] == b.text[same]) ++same;
  EXPECT_NEAR(static_cast<double>(same), 1024 * 3.0, 60);
}

TEST(Trace, PromptsAndDefaults) {
  const auto requests = read_trace(
      write("p.jsonl", "{\"prompt\": \"a\", \"output_tokens\": 3}\n\n{\"prompt\": \"b\"}\n"), 9);
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].output_tokens, 3);
  EXPECT_EQ(requests[1].output_tokens, 9);
  EXPECT_EQ(requests[1].prompt, "b");
  EXPECT_FALSE(requests[0].at.has_value());
}

TEST(Trace, LinesThatAreNoRequestsAreNamed) {
  EXPECT_THAT(trace_error("{\"prompt\": \"a\"}\n{}\n"), HasSubstr("bad.jsonl:2"));
  EXPECT_THAT(trace_error("{\"prompt\": 7}\n"), HasSubstr("\"prompt\" is no text"));
  EXPECT_THAT(trace_error("{\"input_length\": 0}\n"), HasSubstr("input_length"));
  EXPECT_THAT(trace_error("{\"input_length\": 9, \"hash_ids\": [-1]}\n"), HasSubstr("hash_ids"));
  EXPECT_THAT(trace_error("{\"input_length\": 9, \"hash_ids\": 1}\n"), HasSubstr("hash_ids"));
  EXPECT_THAT(trace_error("{\"prompt\": \"a\", \"timestamp\": 5}\n{\"prompt\": \"a\"}\n"),
              HasSubstr("some requests have a time"));
  EXPECT_THAT(trace_error("{\"prompt\": \"a\", \"timestamp\": 5}\n"
                          "{\"prompt\": \"a\", \"timestamp\": 4}\n"),
              HasSubstr("times go back"));
  EXPECT_THAT(trace_error(""), testing::Not("none"));
  // What no model reads, no memory holds and nobody waits for.
  for (const char* length : {"9000000000000000000", "18446744073709551615", "10000001", "1e300"}) {
    EXPECT_THAT(trace_error(fmt::format("{{\"input_length\": {}}}\n", length)),
                HasSubstr("input_length"));
    EXPECT_THAT(trace_error(fmt::format("{{\"prompt\": \"a\", \"output_length\": {}}}\n", length)),
                HasSubstr("output_length"));
  }
  for (const char* time : {"1e308", "1e12"}) {
    EXPECT_THAT(trace_error(fmt::format("{{\"prompt\": \"a\", \"timestamp\": 0}}\n"
                                        "{{\"prompt\": \"a\", \"timestamp\": {}}}\n",
                                        time)),
                HasSubstr("too long after"));
  }
}

}  // namespace
}  // namespace levin::bench::client
