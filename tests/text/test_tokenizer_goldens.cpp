// Ids that Hugging Face's tokenizers gives the same texts (tools/make_tokenizer_goldens.py for the
// hard ones and the variants of the file).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/tiny_tokenizer.h"
#include "text/utf8.h"

namespace levin::text {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

TEST(TokenizerGoldens, EncodesAndDecodesAsTokenizers) {
  const json goldens = read_json(test_data() / "goldens/tokenizer_goldens.json");
  ASSERT_EQ(goldens.size(), 57U);
  for (const auto& golden : goldens) {
    const std::string text = golden["text"];
    EXPECT_EQ(tiny_tokenizer().encode(text), golden["ids"].get<Ids>()) << text;
    const std::string decoded = tiny_tokenizer().decode(golden["ids"].get<Ids>());
    EXPECT_EQ(to_valid_utf8(decoded), golden["decoded"].get<std::string>()) << text;
  }
}

TEST(TokenizerGoldens, EncodesRenderedChats) {
  const json goldens = read_json(test_data() / "goldens/chat_template_goldens.json");
  ASSERT_EQ(goldens.size(), 11U);
  for (const auto& golden : goldens) {
    const std::string text = golden["rendered"];
    EXPECT_EQ(tiny_tokenizer().encode(text), golden["ids"].get<Ids>()) << text;
  }
}

json with_patch(json document, const json& patch) {
  for (const auto& [key, value] : patch.items()) {
    if (key == "model") {
      document["model"].update(value);
    } else if (key == "merges_as_strings") {
      for (auto& merge : document["model"]["merges"]) {
        merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
      }
    } else {
      document[key] = value;
    }
  }
  return document;
}

TEST(TokenizerGoldens, EncodesHardTextsWithEveryVariant) {
  const json goldens = read_json(test_data() / "text/tokenizer_cases.json");
  const json& texts = goldens["texts"];
  ASSERT_GT(texts.size(), 140U);
  ASSERT_EQ(goldens["variants"].size(), 16U);
  for (const auto& variant : goldens["variants"]) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    const Tokenizer tokenizer =
        Tokenizer::parse(with_patch(tiny_json(), variant["patch"]).dump(), "variant");
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::string text = texts[i];
      EXPECT_EQ(tokenizer.encode(text), variant["ids"][i].get<Ids>()) << texts[i];
      if (!variant.contains("decoded_without_special")) continue;
      EXPECT_EQ(tokenizer.decode(variant["ids"][i].get<Ids>(), true),
                variant["decoded_without_special"][i].get<std::string>());
    }
  }
}

}  // namespace
}  // namespace levin::text
