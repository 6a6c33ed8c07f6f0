// Random schemas, judged by an independent validator.
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "grammar_support.h"
#include "schema_validator.h"

namespace levin::text::grammar {
namespace {

class RandomSchema {
 public:
  explicit RandomSchema(unsigned seed) : random_(seed) {}

  Json make() {
    Json schema = schema_of_depth(3);
    if (!schema.is_object()) schema = {{"anyOf", {schema}}};
    schema["$defs"]["small"] = leaf();
    // A list: recursive, with an end.
    schema["$defs"]["list"] = {
        {"anyOf",
         {{{"type", "null"}},
          {{"type", "object"},
           {"properties", {{"head", leaf()}, {"tail", {{"$ref", "#/$defs/list"}}}}},
           {"required", {"head", "tail"}}}}}};
    return schema;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  bool chance(int percent) { return below(100) < percent; }

  Json leaf() {
    switch (below(9)) {
      case 0:
        return {{"type", "null"}};
      case 1:
        return {{"type", "boolean"}};
      case 2:
        return number(true);
      case 3:
        return number(false);
      case 4:
        return string();
      case 5:
        return {{"enum", {1, "a", "ab", nullptr, 2.5, Json::array({1}), "\"\u00e9\n"}}};
      case 6:
        return {{"const", chance(50) ? Json("x<y") : Json{{"k", Json::object()}}}};
      case 7:
        return {{"type", {"string", "integer", "null"}}};
      default:
        return {{"type", "string"}};
    }
  }

  Json number(bool integer) {
    Json schema = {{"type", integer ? "integer" : "number"}};
    const double low = integer ? below(300) - 150 : (below(3000) - 1500) / 10.0;
    const double high = low + (integer ? 1 + below(200) : below(500) / 100.0 + 0.01);
    const auto bound = [&](double value) {
      return integer ? Json(static_cast<int64_t>(value)) : Json(std::round(value * 100) / 100);
    };
    if (chance(60)) schema[chance(70) ? "minimum" : "exclusiveMinimum"] = bound(low);
    if (chance(60)) schema[chance(70) ? "maximum" : "exclusiveMaximum"] = bound(high + 1);
    return schema;
  }

  Json string() {
    Json schema = {{"type", "string"}};
    if (chance(30)) {
      const char* patterns[] = {"^[a-z]{2,4}$", "ab+c?", "^(x|yy)*\\d$", "^[^a-y\"]+$",
                                "\\w\\s\\W",    "",      "^$",           "^\\u00e9.\\\\$"};
      schema["pattern"] = patterns[below(8)];
      return schema;
    }
    const int least = below(4);
    if (chance(50)) schema["minLength"] = least;
    if (chance(50)) schema["maxLength"] = least + below(5);
    return schema;
  }

  Json schema_of_depth(int depth) {
    if (depth == 0) return leaf();
    switch (below(8)) {
      case 0:
        return leaf();
      case 1:
        return chance(50) ? Json::object() : Json(true);
      case 2:
        return {{"$ref", chance(50) ? "#/$defs/small" : "#/$defs/list"}};
      case 3: {
        Json branches = Json::array();
        for (int i = 1 + below(3); i > 0; --i) branches.push_back(schema_of_depth(depth - 1));
        return {{"anyOf", branches}};
      }
      case 4:
        return array(depth);
      default:
        return object(depth);
    }
  }

  Json array(int depth) {
    Json schema = {{"type", "array"}};
    if (chance(80)) schema["items"] = schema_of_depth(depth - 1);
    const int least = below(3);
    if (chance(40)) schema["minItems"] = least;
    if (chance(40)) schema["maxItems"] = least + below(3);
    return schema;
  }

  Json object(int depth) {
    Json schema = {{"type", "object"}};
    const char* names[] = {"a", "ab", "b", "na", "name", "\u00e9", "q\"", ""};
    if (chance(85)) {
      schema["properties"] = Json::object();
      for (const char* name : names) {
        if (!chance(35)) continue;
        schema["properties"][name] = schema_of_depth(depth - 1);
        if (chance(50)) schema["required"].push_back(name);
      }
    }
    if (chance(20)) schema["additionalProperties"] = false;
    if (chance(30)) schema["additionalProperties"] = schema_of_depth(depth - 1);
    return schema;
  }

  std::mt19937 random_;
};

TEST(RandomGrammar, WalksEndInDocumentsThatValidate) {
  std::mt19937 random(11);
  for (unsigned seed = 0; seed < 150; ++seed) {
    const Json schema = RandomSchema(seed).make();
    SCOPED_TRACE(schema.dump());
    const auto grammar = Grammar::json_schema(schema);
    for (unsigned round = 0; round < 6; ++round) {
      Matcher matcher(grammar, small_vocabulary());
      const std::string text = random_walk(matcher, random, 1u << (2 * round));
      ASSERT_TRUE(Json::accept(text)) << text;
      ASSERT_TRUE(SchemaValidator(schema).holds(Json::parse(text))) << text;
      // The same text in other tokens.
      for (int cut = 0; cut < 3; ++cut) {
        Matcher again(grammar, small_vocabulary());
        for (const int32_t token : tokenize(text, random)) ASSERT_TRUE(again.accept(token)) << text;
        ASSERT_TRUE(again.is_complete()) << text;
      }
    }
  }
}

// What the mask allows is what accept() accepts, token by token.
TEST(RandomGrammar, MasksAgreeWithAccept) {
  std::mt19937 random(12);
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Json schema = RandomSchema(seed).make();
    SCOPED_TRACE(schema.dump());
    const auto grammar =
        Grammar::json_schema(schema, {.until = "</think>", .never = {"<tool_call>"}});
    Matcher matcher(grammar, small_vocabulary());
    ASSERT_TRUE(matcher.accept('x'));
    for (int step = 0; step < 60 && !matcher.finished(); ++step) {
      const TokenMask mask = mask_of(matcher);
      std::vector<int32_t> choices;
      for (int32_t token = 0; token < small_vocabulary()->size(); ++token) {
        const bool accepted = matcher.accept(token);
        ASSERT_EQ(accepted, is_allowed(mask, token)) << "token " << token << " at step " << step;
        if (!accepted) continue;
        choices.push_back(token);
        ASSERT_TRUE(matcher.rollback(1));
      }
      ASSERT_FALSE(choices.empty());
      // Leaves the free text soon.
      const int32_t end = *small_vocabulary()->special_tokens("</think>").begin();
      const bool leave = step == 5 && is_allowed(mask, end);
      ASSERT_TRUE(matcher.accept(leave ? end : choices[random() % choices.size()]));
    }
  }
}

TEST(RandomGrammar, RollingBackIsAsGoodAsStartingAgain) {
  std::mt19937 random(13);
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Json schema = RandomSchema(seed).make();
    SCOPED_TRACE(schema.dump());
    const auto grammar = Grammar::json_schema(schema);
    Matcher matcher(grammar, small_vocabulary());
    std::vector<int32_t> tokens;
    for (int round = 0; round < 12; ++round) {
      for (int i = 0; i < 8; ++i) {
        const TokenMask mask = mask_of(matcher);
        std::vector<int32_t> choices;
        for (int32_t token = 0; token < small_vocabulary()->size(); ++token) {
          if (is_allowed(mask, token)) choices.push_back(token);
        }
        tokens.push_back(choices[random() % choices.size()]);
        ASSERT_TRUE(matcher.accept(tokens.back()));
      }
      const std::size_t back = random() % (tokens.size() + 1);
      ASSERT_TRUE(matcher.rollback(back));
      tokens.resize(tokens.size() - back);
      Matcher fresh(grammar, small_vocabulary());
      for (const int32_t token : tokens) ASSERT_TRUE(fresh.accept(token));
      ASSERT_EQ(matcher.size(), fresh.size());
      ASSERT_EQ(matcher.is_complete(), fresh.is_complete());
      ASSERT_EQ(matcher.finished(), fresh.finished());
      ASSERT_EQ(mask_of(matcher), mask_of(fresh));
    }
  }
}

}  // namespace
}  // namespace levin::text::grammar
