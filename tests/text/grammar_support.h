// What the tests of constrained decoding share: vocabularies, and ways to feed text to a grammar.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/matcher.h"

namespace levin::text::grammar {

using Json = nlohmann::ordered_json;
using Matcher = GrammarMatcher;

inline constexpr int32_t kStopToken = 256;

// All bytes, a stop token, the special tokens of the model, and pieces that cut across the seams of
// JSON, of characters and of tags.
inline std::shared_ptr<const TokenVocabulary> small_vocabulary() {
  static const auto vocabulary = [] {
    std::vector<TokenVocabulary::Token> tokens;
    tokens.reserve(400);
    for (int byte = 0; byte < 256; ++byte) {
      tokens.push_back({std::string(1, static_cast<char>(byte)), false});
    }
    tokens.push_back({"<|im_end|>", true});
    for (const char* special : {"<think>", "</think>", "<tool_call>", "</tool_call>", "<s>"}) {
      tokens.push_back({special, true});
    }
    for (const char* piece : {"{\"",
                              "\":",
                              "\": ",
                              "\", \"",
                              "\",\"",
                              "\"}",
                              "}}",
                              "]}",
                              "[[",
                              "[]",
                              "{}",
                              "},",
                              "],",
                              "  ",
                              "    ",
                              "\n",
                              "\n  ",
                              ", ",
                              ": ",
                              "true",
                              "tr",
                              "ue",
                              "false",
                              "null",
                              "nul",
                              "10",
                              "123",
                              "00",
                              "0.",
                              ".5",
                              "-1",
                              "e1",
                              "ab",
                              "abc",
                              "b",
                              "na",
                              "name",
                              "\"name\"",
                              "\"a",
                              "\\n",
                              "\\u",
                              "\\\"",
                              "\\\\",
                              "00e9",
                              "\xc3\xa9",
                              "\xe2\x82",
                              "\x82\xac",
                              "\xe2\x82\xac",
                              "\xf0\x9f",
                              "\x98\x80",
                              "\xf0\x9f\x98\x80",
                              "\"\xc3",
                              "</",
                              "</par",
                              "<parameter",
                              "parameter=",
                              ">\n",
                              "\n</parameter>\n",
                              "</function>",
                              "<function=",
                              "True",
                              "None",
                              " a",
                              " b",
                              "hello",
                              " world",
                              "x</",
                              "think>",
                              "</thi",
                              "k>{",
                              "\n\n",
                              "2024-",
                              "T1"}) {
      tokens.push_back({piece, false});
    }
    tokens.push_back({"", false});  // decodes to nothing
    return std::make_shared<const TokenVocabulary>(tokens, std::vector<int32_t>{kStopToken});
  }();
  return vocabulary;
}

inline bool is_allowed(const TokenMask& mask, int32_t token) {
  return ((mask[static_cast<std::size_t>(token) / 64] >> (token % 64)) & 1) != 0;
}

inline TokenMask mask_of(Matcher& matcher) {
  TokenMask mask(small_vocabulary()->mask_words());
  matcher.allowed(mask);
  return mask;
}

// Whether the grammar lets `text` through, byte by byte, and can end there.
inline bool accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar, small_vocabulary());
  for (const char c : text) {
    if (!matcher.accept(static_cast<uint8_t>(c))) return false;
  }
  return matcher.is_complete();
}

inline bool accepts(const char* schema, std::string_view text) {
  return accepts(Grammar::json_schema(Json::parse(schema)), text);
}

// Cuts `text` into tokens at random.
inline std::vector<int32_t> tokenize(std::string_view text, std::mt19937& random) {
  const TokenVocabulary& vocabulary = *small_vocabulary();
  std::vector<int32_t> tokens;
  while (!text.empty()) {
    std::vector<int32_t> fits;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      const std::string_view bytes = vocabulary.bytes_of(id);
      if (!bytes.empty() && vocabulary.special_content(id).empty() && text.starts_with(bytes)) {
        fits.push_back(id);
      }
    }
    tokens.push_back(fits[random() % fits.size()]);
    text.remove_prefix(vocabulary.bytes_of(tokens.back()).size());
  }
  return tokens;
}

// What ends a text, the innermost first.
inline const std::vector<int32_t>& closing_tokens() {
  static const auto tokens = [] {
    std::vector<int32_t> ids = {kStopToken, '"', '}', ']'};
    for (int32_t id = 0; id < small_vocabulary()->size(); ++id) {
      const std::string_view bytes = small_vocabulary()->bytes_of(id);
      if (bytes == "</think>" || bytes == "\n</parameter>\n") ids.insert(ids.begin() + 1, id);
    }
    return ids;
  }();
  return tokens;
}

// Puts out random tokens that are allowed until the output ends; after `patience` of them prefers
// those that close something. The text; special tokens count as their content.
inline std::string random_walk(Matcher& matcher, std::mt19937& random, std::size_t patience) {
  const TokenVocabulary& vocabulary = *small_vocabulary();
  std::string text;
  while (!matcher.finished()) {
    const TokenMask mask = mask_of(matcher);
    std::vector<int32_t> choices;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      if (is_allowed(mask, id)) choices.push_back(id);
    }
    if (choices.empty() || matcher.size() > 20000) {
      ADD_FAILURE() << "no way on behind " << text.substr(0, 1000);
      return text;
    }
    int32_t token = choices[random() % choices.size()];
    if (matcher.size() >= patience && random() % 4 != 0) {
      for (const int32_t closing : closing_tokens()) {
        if (!is_allowed(mask, closing)) continue;
        token = closing;
        break;
      }
    }
    EXPECT_TRUE(matcher.accept(token));
    if (token != kStopToken) text += vocabulary.bytes_of(token);
  }
  return text;
}

}  // namespace levin::text::grammar
