// Any text as a JSON schema, or as tools when it is an array: an Error, or a grammar in which every
// walk through allowed tokens can go on. What stands behind a zero byte steers the walk.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "text/grammar/matcher.h"

namespace {

using namespace levin::text::grammar;

constexpr int32_t kStop = 256;

const std::shared_ptr<const TokenVocabulary>& vocabulary() {
  static const auto made = [] {
    std::vector<TokenVocabulary::Token> tokens;
    for (int byte = 0; byte < 256; ++byte) {
      tokens.push_back({std::string(1, static_cast<char>(byte)), false});
    }
    tokens.push_back({"<|im_end|>", true});
    for (const char* special : {"</think>", "<tool_call>", "</tool_call>"}) {
      tokens.push_back({special, true});
    }
    for (const char* piece : {"{\"", "\":", "\",", "\"}", "]}", "  ", "true", "null", "12", "0.5",
                              "ab", "\xc3\xa9", "\xe2\x82", "\\u", "\n</parameter>\n", "</"}) {
      tokens.push_back({piece, false});
    }
    return std::make_shared<const TokenVocabulary>(tokens, std::vector<int32_t>{kStop});
  }();
  return made;
}

void require(bool condition) {
  if (!condition) std::abort();
}

bool has_bit(const TokenMask& mask, int32_t token) {
  return ((mask[static_cast<std::size_t>(token) / 64] >> (token % 64)) & 1) != 0;
}

// Walks at random, prefers what closes something after a while, and gives up at some length.
void walk(const std::shared_ptr<const Grammar>& grammar, uint32_t random, bool is_json) {
  GrammarMatcher matcher(grammar, vocabulary());
  TokenMask mask(vocabulary()->mask_words());
  std::string text;
  while (!matcher.finished() && matcher.size() < 150) {
    matcher.allowed(mask);
    std::vector<int32_t> choices;
    for (int32_t token = 0; token < vocabulary()->size(); ++token) {
      if (has_bit(mask, token)) choices.push_back(token);
    }
    require(!choices.empty());
    random = random * 1664525u + 1013904223u;
    int32_t token = choices[(random >> 16) % choices.size()];
    for (const int32_t closing : {kStop, int32_t{'"'}, int32_t{'}'}, int32_t{']'}}) {
      if (matcher.size() > 40 && (random >> 30) != 0 && has_bit(mask, closing)) {
        token = closing;
        break;
      }
    }
    require(matcher.accept(token));
    if (matcher.size() % 16 == 0) {
      require(matcher.rollback(1));
      require(matcher.accept(token));
    }
    if (token != kStop) text += vocabulary()->bytes_of(token);
  }
  if (matcher.finished() && is_json) require(nlohmann::json::accept(text));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  uint32_t random = 1;
  if (const std::size_t zero = text.find('\0'); zero != text.npos) {
    for (const char c : text.substr(zero)) random = random * 257 + static_cast<uint8_t>(c);
    text = text.substr(0, zero);
  }
  try {
    const auto json = levin::parse_ordered_json(text, "fuzz");
    const FreePrefix prefix = {.until = "</think>", .never = {"<tool_call>"}};
    if (json.is_array()) {
      walk(Grammar::tool_calls(json, {}, random % 2 == 0 ? prefix : FreePrefix{}), random, false);
    } else {
      walk(Grammar::json_schema(json), random, true);
    }
  } catch (const levin::Error&) {
    return 0;
  }
  return 0;
}
