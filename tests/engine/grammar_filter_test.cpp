// A model that would rather put out white space than anything else, as small ones do in JSON mode.
#include "engine/grammar_filter.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "text/grammar/json_rules.h"
#include "text/tokenizer.h"

namespace levin::engine {
namespace {

using text::grammar::Grammar;
using Json = nlohmann::ordered_json;

const text::Tokenizer& tokenizer() {
  static const auto loaded =
      text::Tokenizer::load(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny");
  return loaded;
}

bool is_white(std::string_view bytes) {
  return !bytes.empty() && bytes.find_first_not_of(" \n\t\r") == bytes.npos;
}

// Follows the grammar with the longest white space that is allowed, else with the shortest of what
// is: the text when it ends, or after `most` tokens.
std::string wander(const std::shared_ptr<const Grammar>& grammar, int most) {
  const int32_t stop = *tokenizer().find("<|im_end|>");
  const auto vocabulary = text::grammar::TokenVocabulary::of(tokenizer(), {stop});
  const auto filter = make_grammar_filter(grammar, vocabulary);
  std::vector<uint64_t> mask(vocabulary->mask_words());
  std::string text;
  for (int i = 0; i < most; ++i) {
    filter->allowed(mask);
    int32_t white = -1;
    int32_t other = -1;
    for (int32_t id = 0; id < vocabulary->size(); ++id) {
      if ((mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1) == 0) continue;
      const std::string_view bytes = id == stop ? "" : tokenizer().bytes_of(id);
      if (id == stop) {
        other = id;
        if (white < 0) break;
      } else if (is_white(bytes)) {
        if (white < 0 || bytes.size() > tokenizer().bytes_of(white).size()) white = id;
      } else if (other < 0 ||
                 (other != stop && bytes.size() < tokenizer().bytes_of(other).size())) {
        other = id;
      }
    }
    const int32_t chosen = white >= 0 ? white : other;
    if (chosen == stop || chosen < 0) break;
    filter->accept(chosen);
    text += tokenizer().bytes_of(chosen);
  }
  return text;
}

std::size_t longest_white(std::string_view text) {
  std::size_t longest = 0;
  std::size_t run = 0;
  for (const char c : text) {
    run = is_white({&c, 1}) ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest;
}

TEST(GrammarFilter, WhiteSpaceEnds) {
  const Json schema = {{"type", "object"},
                       {"properties", {{"a", {{"type", "integer"}}}, {"b", {{"type", "boolean"}}}}},
                       {"required", Json::array({"a", "b"})},
                       {"additionalProperties", false}};
  const std::string constrained = wander(Grammar::json_schema(schema), 400);
  EXPECT_EQ(longest_white(constrained), std::size_t{text::grammar::kMaxWhiteSpace});
  EXPECT_TRUE(Json::parse(constrained).is_object());
  // Before the first key of any object it has to stop wandering too.
  const std::string object = wander(Grammar::json_object(), 40);
  const std::size_t open = object.find('{');
  ASSERT_NE(open, object.npos);
  const std::size_t next = object.find_first_not_of(" \n\t\r", open + 1);
  ASSERT_NE(next, object.npos);
  EXPECT_LE(next - open - 1, std::size_t{text::grammar::kMaxWhiteSpace});
  EXPECT_LE(open, std::size_t{text::grammar::kMaxWhiteSpace});
}

}  // namespace
}  // namespace levin::engine
