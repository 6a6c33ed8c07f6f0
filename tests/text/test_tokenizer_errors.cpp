// tokenizer.json files that are malformed, contradict themselves or use what levin does not
// implement: each is an Error that names the place.
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "core/error.h"
#include "text/tiny_tokenizer.h"

namespace levin::text {
namespace {

using nlohmann::json;

// The smallest good file: the 256 bytes, one merge, one added token.
json small_file() {
  json vocab = json::object();
  for (const auto& [spelling, id] : tiny_json()["model"]["vocab"].items()) {
    const int32_t number = id.get<int32_t>();
    if (tiny_tokenizer().bytes_of(number).size() == 1) vocab[spelling] = number;
  }
  vocab["th"] = 300;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens",
           {{{"id", 0},
             {"content", "<s>"},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"normalized", false},
             {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"},
               {"pattern", {{"Regex", "\\s+|\\S+"}}},
               {"behavior", "Isolated"},
               {"invert", false}},
              {{"type", "ByteLevel"},
               {"add_prefix_space", false},
               {"trim_offsets", true},
               {"use_regex", false}}}}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", json::parse(R"([["t", "h"]])")}}}};
}

struct Case {
  std::string name;
  std::function<void(json&)> damage;
  std::string what;   // of the Error
  std::string where;  // part of it
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

const auto kStage = [](json& file) -> json& { return file["pre_tokenizer"]["pretokenizers"][0]; };

const Case kCases[] = {
    {"no vocab", [](json& f) { f["model"].erase("vocab"); }, "tokenizer field is missing",
     "model.vocab"},
    {"no merges", [](json& f) { f["model"].erase("merges"); }, "tokenizer field is missing",
     "model.merges"},
    {"no model", [](json& f) { f.erase("model"); }, "tokenizer field is missing", "model"},
    {"no decoder", [](json& f) { f["decoder"] = nullptr; }, "tokenizer field is missing",
     "decoder"},
    {"no pre-tokenizer", [](json& f) { f["pre_tokenizer"] = nullptr; },
     "tokenizer field is missing", "pre_tokenizer"},
    {"an array", [](json& f) { f = json::array(); }, "tokenizer field has the wrong type", "file"},
    {"vocab is a list", [](json& f) { f["model"]["vocab"] = json::array({"a"}); },
     "tokenizer field has the wrong type", "model.vocab"},
    {"merges is a number", [](json& f) { f["model"]["merges"] = 3; },
     "tokenizer field has the wrong type", "model.merges"},
    {"unknown left token", [](json& f) { f["model"]["merges"] = json::parse(R"([["zz", "h"]])"); },
     "merge refers to a token that is not in the vocabulary", "model.merges[0]"},
    {"unknown right token", [](json& f) { f["model"]["merges"] = {"t zz"}; },
     "merge refers to a token that is not in the vocabulary", "model.merges[0]"},
    {"unknown result",
     [](json& f) { f["model"]["merges"] = json::parse(R"([["t", "h"], ["h", "t"]])"); },
     "merge refers to a token that is not in the vocabulary", "model.merges[1]"},
    {"merge twice",
     [](json& f) { f["model"]["merges"] = json::parse(R"([["t", "h"], ["t", "h"]])"); },
     "merge stands twice", "model.merges[1]"},
    {"merge of three", [](json& f) { f["model"]["merges"] = {"t h e"}; }, "merge is malformed",
     "model.merges[0]"},
    {"merge of one", [](json& f) { f["model"]["merges"] = json::array({json::array({"t"})}); },
     "merge is malformed", "model.merges[0]"},
    {"merge of numbers",
     [](json& f) {
       f["model"]["merges"] = {{1, 2}};
     },
     "merge is malformed", "model.merges[0]"},
    {"negative id", [](json& f) { f["model"]["vocab"]["th"] = -1; }, "token id is out of range",
     "vocab[\"th\"]"},
    {"huge id", [](json& f) { f["model"]["vocab"]["th"] = 1LL << 40; }, "token id is out of range",
     "vocab[\"th\"]"},
    {"id beyond 64 bits", [](json& f) { f["model"]["vocab"]["th"] = 1e300; },
     "token id is out of range", "vocab[\"th\"]"},
    {"id is text", [](json& f) { f["model"]["vocab"]["th"] = "5"; }, "token id is out of range",
     "vocab[\"th\"]"},
    {"duplicate id", [](json& f) { f["model"]["vocab"]["th"] = f["model"]["vocab"]["a"]; },
     "two tokens of the vocabulary have the same id", "model.vocab"},
    {"byte missing", [](json& f) { f["model"]["vocab"].erase("Ġ"); },
     "the vocabulary has no token for a byte", "model.vocab"},
    {"unknown model", [](json& f) { f["model"]["type"] = "Unigram"; },
     "tokenizer model is not implemented", "model.type"},
    {"dropout", [](json& f) { f["model"]["dropout"] = 0.1; }, "tokenizer option is not implemented",
     "model.dropout"},
    {"byte fallback", [](json& f) { f["model"]["byte_fallback"] = true; },
     "tokenizer option is not implemented", "model.byte_fallback"},
    {"subword prefix", [](json& f) { f["model"]["continuing_subword_prefix"] = "##"; },
     "tokenizer option is not implemented", "continuing_subword_prefix"},
    {"word suffix", [](json& f) { f["model"]["end_of_word_suffix"] = "</w>"; },
     "tokenizer option is not implemented", "end_of_word_suffix"},
    {"unknown model option", [](json& f) { f["model"]["magic"] = 1; },
     "tokenizer option is not known", "model"},
    {"unknown field", [](json& f) { f["magic"] = 1; }, "tokenizer option is not known", "file"},
    {"ignore_merges is text", [](json& f) { f["model"]["ignore_merges"] = "yes"; },
     "tokenizer field has the wrong type", "ignore_merges"},
    {"normalizer",
     [](json& f) {
       f["normalizer"] = {{"type", "Lowercase"}};
     },
     "normalizer is not implemented", "normalizer"},
    {"normalizer sequence",
     [](json& f) {
       f["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFKC"}}}}};
     },
     "normalizer is not implemented", "normalizers"},
    {"normalizer without type",
     [](json& f) {
       f["normalizer"] = {{"kind", "NFC"}};
     },
     "tokenizer field is missing", "normalizer.type"},
    {"decoder", [](json& f) { f["decoder"]["type"] = "Metaspace"; }, "decoder is not implemented",
     "decoder"},
    {"pre-tokenizer",
     [](json& f) {
       f["pre_tokenizer"] = {{"type", "Whitespace"}};
     },
     "pre-tokenizer is not implemented", "pre_tokenizer"},
    {"no ByteLevel", [](json& f) { f["pre_tokenizer"]["pretokenizers"].erase(1); },
     "the pre-tokenizer has no ByteLevel stage", "pre_tokenizer"},
    {"stage behind ByteLevel",
     [](json& f) { f["pre_tokenizer"]["pretokenizers"].push_back(kStage(f)); },
     "pre-tokenizer stage after ByteLevel", "pretokenizers[2]"},
    {"behavior", [](json& f) { kStage(f)["behavior"] = "MergedWithNext"; },
     "split behavior is not implemented", "pretokenizers[0].behavior"},
    {"no pattern", [](json& f) { kStage(f).erase("pattern"); }, "tokenizer field is missing",
     "pretokenizers[0].pattern"},
    {"pattern kind",
     [](json& f) {
       kStage(f)["pattern"] = {{"Glob", "*"}};
     },
     "tokenizer option is not known", "pattern"},
    {"bad regex", [](json& f) { kStage(f)["pattern"]["Regex"] = "(a"; },
     "split pattern is not a valid regular expression", "pattern.Regex"},
    {"empty regex", [](json& f) { kStage(f)["pattern"]["Regex"] = ""; },
     "split pattern has an unreasonable length", "pattern.Regex"},
    {"refused regex", [](json& f) { kStage(f)["pattern"]["Regex"] = "\\w+"; },
     "the regular expression uses a construct that levin does not implement", "pattern.Regex"},
    {"single_word", [](json& f) { f["added_tokens"][0]["single_word"] = true; },
     "tokenizer option is not implemented", "added_tokens[0].single_word"},
    {"added token without id", [](json& f) { f["added_tokens"][0].erase("id"); },
     "tokenizer field is missing", "added_tokens[0].id"},
    {"empty added token", [](json& f) { f["added_tokens"][0]["content"] = ""; },
     "added token has an unreasonable length", "added_tokens[0].content"},
    {"endless added token",
     [](json& f) { f["added_tokens"][0]["content"] = std::string(5000, 'x'); },
     "added token has an unreasonable length", "added_tokens[0].content"},
    {"added token twice", [](json& f) { f["added_tokens"].push_back(f["added_tokens"][0]); },
     "added token stands twice", "added_tokens[1]"},
    {"added token id of another", [](json& f) { f["added_tokens"][0]["id"] = 300; },
     "added token contradicts the vocabulary", "added_tokens"},
    {"added token with another id", [](json& f) { f["added_tokens"][0]["content"] = "th"; },
     "added token contradicts the vocabulary", "added_tokens"},
    {"unknown added token option", [](json& f) { f["added_tokens"][0]["weight"] = 1; },
     "tokenizer option is not known", "added_tokens[0]"},
};

class TokenizerErrors : public testing::TestWithParam<Case> {};

TEST_P(TokenizerErrors, NamesThePlace) {
  json file = small_file();
  GetParam().damage(file);
  try {
    (void)Tokenizer::parse(file.dump(), "file");
    FAIL() << "parsed";
  } catch (const Error& error) {
    EXPECT_EQ(error.parts().what, GetParam().what);
    EXPECT_NE(error.parts().where.find(GetParam().where), std::string::npos) << error.parts().where;
    EXPECT_EQ(error.exit_code(), ExitCode::kBadInput);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerErrors, testing::ValuesIn(kCases),
                         [](const auto& param_info) {
                           std::string name = param_info.param.name;
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

TEST(TokenizerFiles, AcceptsTheSmallFile) {
  const Tokenizer tokenizer = Tokenizer::parse(small_file().dump(), "file");
  EXPECT_EQ(tokenizer.encode("th"), std::vector<int32_t>{300});
}

TEST(TokenizerFiles, LeavesGapsBetweenIdsUnused) {
  const Tokenizer tokenizer = Tokenizer::parse(small_file().dump(), "file");
  EXPECT_EQ(tokenizer.vocab_size(), 301);
  EXPECT_THROW((void)tokenizer.bytes_of(299), Error);
}

TEST(TokenizerFiles, RefusesWhatIsNotJson) {
  EXPECT_THROW((void)Tokenizer::parse("", "file"), Error);
  EXPECT_THROW((void)Tokenizer::parse("{\"model\": ", "file"), Error);
  EXPECT_THROW((void)Tokenizer::parse("{\"model\": \"\xFF\"}", "file"), Error);
  EXPECT_THROW((void)Tokenizer::load("/nonexistent"), Error);
}

// What would put tokens around a text is not applied; whoever loads the file can say so.
TEST(TokenizerFiles, TellsWhatWouldSurroundText) {
  const json around = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}}}}}}};
  json nothing = around;
  nothing["single"].erase(0);
  const json offsets = {{"type", "ByteLevel"}};
  const std::vector<std::pair<json, bool>> cases = {
      {nullptr, false},
      {offsets, false},
      {around, true},
      {nothing, false},
      {{{"type", "Sequence"}, {"processors", {offsets, around}}}, true},
      {{{"type", "Sequence"}, {"processors", {offsets, nothing}}}, false},
      {{{"type", "BertProcessing"}}, true}};
  for (const auto& [processor, surrounds] : cases) {
    json file = small_file();
    file["post_processor"] = processor;
    const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "file");
    EXPECT_EQ(tokenizer.surrounds_text(), surrounds) << processor;
    EXPECT_EQ(tokenizer.encode("th"), std::vector<int32_t>{300});
  }
}

}  // namespace
}  // namespace levin::text
