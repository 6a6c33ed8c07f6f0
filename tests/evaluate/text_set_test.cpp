#include "evaluate/text_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "temporary_file.h"

namespace levin::evaluate {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string refusal(const std::string& name, std::string_view content) {
  const TemporaryFile file(name, content);
  try {
    load_text(file.path());
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kBadInput);
    return error.what();
  }
  return "accepted";
}

TEST(LoadText, PlainFileIsOneDocument) {
  const TemporaryFile file("prose.txt", "Two lines,\none document.\n");
  const TextSet text = load_text(file.path());
  EXPECT_THAT(text.documents, ElementsAre("Two lines,\none document.\n"));
  EXPECT_THAT(text.kind, HasSubstr("prose"));
}

TEST(LoadText, JsonLines) {
  const TemporaryFile file("code.jsonl",
                           "{\"text\": \"one\", \"source\": 1}\n\n  \r\n{\"text\": \"t\\nwo\"}");
  EXPECT_THAT(load_text(file.path()).documents, ElementsAre("one", "t\nwo"));
}

TEST(LoadText, RefusesWithFileAndLine) {
  EXPECT_THAT(refusal("a.jsonl", "{\"text\": \"x\"}\n{\"txt\": \"x\"}"),
              AllOf(HasSubstr("a.jsonl:2"), HasSubstr("no text")));
  EXPECT_THAT(refusal("b.jsonl", "{\"text\": 7}"), HasSubstr("b.jsonl:1"));
  EXPECT_THAT(refusal("c.jsonl", "{\"text\": \"x\"}\n{\"text\": \"x\""),
              AllOf(HasSubstr("c.jsonl:2"), HasSubstr("not valid JSON")));
  EXPECT_THAT(refusal("d.jsonl", "[1]"), AllOf(HasSubstr("d.jsonl:1"), HasSubstr("object")));
  EXPECT_THAT(refusal("e.jsonl", "{\"text\": \"\"}"),
              AllOf(HasSubstr("e.jsonl:1"), HasSubstr("empty")));
  EXPECT_THAT(refusal("f.jsonl", "\n\n"), HasSubstr("no JSON object"));
  EXPECT_THAT(refusal("g.jsonl", ""), HasSubstr("no JSON object"));
  EXPECT_THAT(refusal("h.jsonl", "{\"text\": \"a\", \"text\": \"b\"}"),
              AllOf(HasSubstr("h.jsonl:1"), HasSubstr("twice")));
  EXPECT_THAT(refusal("i.jsonl", "{\"text\": \"x\"}\n{\"text\": \"\xff\"}"),
              AllOf(HasSubstr("i.jsonl:2"), HasSubstr("not UTF-8"), HasSubstr("0xff")));
  EXPECT_THAT(refusal("j.txt", "abc\xc3"), AllOf(HasSubstr("j.txt"), HasSubstr("offset 3")));
  EXPECT_THAT(refusal("k.txt", ""), HasSubstr("empty"));
  EXPECT_THROW(load_text("/nonexistent/text.txt"), Error);
}

// Counts and first ids that an independent tokenizer gave for the shipped text.
TEST(TokenizeText, ProseMatchesReference) {
  std::ifstream file(LEVIN_SOURCE_DIR "/tests/data/ppl_reference.json");
  const auto reference = nlohmann::json::parse(file).at("prose");
  const auto tokenizer = text::Tokenizer::load(LEVIN_SOURCE_DIR "/models/tiny");
  const TokenStream stream =
      tokenize(load_text(LEVIN_SOURCE_DIR "/evals/tiny/text/prose.jsonl"), tokenizer);
  EXPECT_EQ(stream.kind, "prose");
  EXPECT_EQ(stream.documents, 4);
  EXPECT_EQ(stream.tokens.size(), reference.at("total_tokens").get<std::size_t>());
  const auto first = reference.at("first32_ids").get<std::vector<int32_t>>();
  ASSERT_GE(stream.tokens.size(), first.size());
  EXPECT_TRUE(std::equal(first.begin(), first.end(), stream.tokens.begin()));
  EXPECT_EQ(stream.tokens.back(), 2);
}

// The other kind of shipped text, frozen: figures of perplexity are comparable only while it stays.
TEST(TokenizeText, CodeIsAsItWasFrozen) {
  const auto tokenizer = text::Tokenizer::load(LEVIN_SOURCE_DIR "/models/tiny");
  const TextSet text = load_text(LEVIN_SOURCE_DIR "/evals/tiny/text/code.jsonl");
  const TokenStream stream = tokenize(text, tokenizer);
  EXPECT_EQ(stream.kind, "code");
  EXPECT_EQ(stream.documents, 89);
  EXPECT_EQ(stream.tokens.size(), 174103U);  // by Hugging Face's tokenizers, too
  // Nothing of the calibration text.
  const TextSet calibration = load_text(LEVIN_SOURCE_DIR "/evals/tiny/calibration.jsonl");
  for (const std::string& document : text.documents) {
    EXPECT_THAT(calibration.documents, Not(Contains(HasSubstr(document))));
    EXPECT_EQ(document.find("</s>"), std::string::npos);
    EXPECT_EQ(document.find("<|"), std::string::npos);
  }
}

}  // namespace
}  // namespace levin::evaluate
