#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "grammar_support.h"
#include "schema_validator.h"
#include "text/assistant_parser.h"

namespace levin::text::grammar {
namespace {

const Json& tools() {
  static const Json json = Json::parse(R"x([
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
      "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"type": "string", "enum": ["celsius", "kelvin"]}},
      "required": ["city"]}}},
    {"name": "now"},
    {"name": "set", "parameters": {"type": "object",
      "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"},
        "next": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]}}, "required": ["x"]}},
      "properties": {
        "b": {"type": "boolean", "description": "a flag"},
        "n": {"type": "number"},
        "z": {"type": ["string", "null"]},
        "si": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "p": {"$ref": "#/$defs/point"},
        "l": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "short": {"type": "string", "minLength": 2, "maxLength": 5},
        "code": {"type": "string", "pattern": "^[A-Z]{3}-\\d+$"},
        "any": {},
        "mixed": {"enum": ["x", 5, null, true, {"k": 1}]},
        "in": {"oneOf": [{"type": "integer"}, {"type": "null"}]}},
      "required": ["b", "p"]}},
    {"name": "free", "parameters": {"type": "object"}}])x");
  return json;
}

const Json& parameters(const std::string& name) {
  static const Json none = Json::object();
  for (const Json& tool : tools()) {
    const Json& function = tool.contains("function") ? tool["function"] : tool;
    if (function["name"] == name) {
      return function.contains("parameters") ? function["parameters"] : none;
    }
  }
  return none;
}

bool lets_through(const std::string& text, const ToolChoice& choice = {}) {
  return accepts(Grammar::tool_calls(tools(), choice), text);
}

std::string call(const std::string& name, const std::string& body = "") {
  return "<tool_call>\n<function=" + name + ">\n" + body + "</function>\n</tool_call>";
}

std::string parameter(const std::string& key, const std::string& value) {
  return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
}

TEST(ToolCallGrammar, LetsCallsThroughAndNothingElse) {
  const std::string city = parameter("city", "Paris");
  EXPECT_TRUE(lets_through(call("now")));
  EXPECT_TRUE(lets_through("\n" + call("now")));
  EXPECT_TRUE(lets_through(call("get_weather", city)));
  EXPECT_TRUE(lets_through(call("get_weather", city + parameter("days", "14"))));
  EXPECT_TRUE(lets_through(call("now") + "\n" + call("now")));
  EXPECT_TRUE(lets_through(call("now") + call("get_weather", city)));
  EXPECT_TRUE(lets_through(call("get_weather", parameter("city", "\ntwo\nlines\n</p> <b> é\n"))));
  EXPECT_TRUE(lets_through(call("get_weather", parameter("city", ""))));
  EXPECT_FALSE(lets_through(""));
  EXPECT_FALSE(lets_through("Sure!"));
  EXPECT_FALSE(lets_through("<tool_call>\n<function=now>"));
  EXPECT_FALSE(lets_through(call("never")));
  EXPECT_FALSE(lets_through(call("get_weather")));
  EXPECT_FALSE(lets_through(call("get_weather", parameter("days", "1"))));
  EXPECT_FALSE(lets_through(call("get_weather", city + parameter("days", "15"))));
  EXPECT_FALSE(lets_through(call("get_weather", city + parameter("unit", "miles"))));
  EXPECT_FALSE(lets_through(call("get_weather", city + parameter("else", "x"))));
  EXPECT_FALSE(lets_through(call("get_weather", city + city)));
  EXPECT_FALSE(lets_through(call("get_weather", parameter("city", "x</parameter>"))));
  EXPECT_FALSE(lets_through(call("get_weather", parameter("city", "</function>"))));
  EXPECT_TRUE(lets_through(call("free", parameter("x", "1") + parameter("y.z", ""))));
}

TEST(ToolCallGrammar, ValuesHaveTheTypesOfTheSchema) {
  const auto with = [](const std::string& more) {
    return lets_through(call("set", parameter("b", "true") + more));
  };
  const auto last = parameter("p", R"({"x": 1.5, "next": {"x": 2}})");
  EXPECT_TRUE(with(last));
  EXPECT_TRUE(lets_through(call("set", parameter("b", "False") + last)));
  EXPECT_FALSE(lets_through(call("set", parameter("b", "no") + last)));
  EXPECT_TRUE(with(parameter("n", "-2.5e3") + parameter("z", "None") + last));
  EXPECT_FALSE(with(parameter("n", "many") + last));
  EXPECT_FALSE(with(parameter("p", R"({"x": "1"})")));
  EXPECT_TRUE(with(last + parameter("l", R"(["a\u003c"])")));
  EXPECT_FALSE(with(last + parameter("l", R"(["</parameter>"])")));
  EXPECT_FALSE(with(last + parameter("l", R"([1])")));
  EXPECT_TRUE(with(last + parameter("short", "ab")));
  EXPECT_TRUE(with(last + parameter("short", "é\n\n<b")));
  EXPECT_FALSE(with(last + parameter("short", "a")));
  EXPECT_FALSE(with(last + parameter("short", "abcdef")));
  EXPECT_TRUE(with(last + parameter("code", "ABC-12")));
  EXPECT_FALSE(with(last + parameter("code", "abc-12")));
  EXPECT_TRUE(with(last + parameter("mixed", R"({"k":1})")));
  EXPECT_FALSE(with(last + parameter("mixed", "y")));
}

TEST(ToolCallGrammar, HonoursTheChoice) {
  const ToolChoice named{.name = "now", .parallel = true};
  EXPECT_TRUE(lets_through(call("now"), named));
  EXPECT_FALSE(lets_through(call("free"), named));
  const ToolChoice single{.name = "", .parallel = false};
  EXPECT_TRUE(lets_through(call("now"), single));
  EXPECT_FALSE(lets_through(call("now") + "\n" + call("now"), single));
}

// A line break, as templates have it behind every call, obliges to nothing; more there is none.
TEST(ToolCallGrammar, EndsBehindAnyCall) {
  for (const bool parallel : {true, false}) {
    SCOPED_TRACE(parallel);
    const ToolChoice choice{.name = "", .parallel = parallel};
    EXPECT_TRUE(lets_through(call("now") + "\n", choice));
    EXPECT_EQ(lets_through(call("now") + "\n" + call("now") + "\n", choice), parallel);
    for (const char* behind : {"\n\n", " ", "\n ", "Done.", "\nDone.", "<", "</tool_call>"}) {
      EXPECT_FALSE(lets_through(call("now") + behind, choice)) << behind;
    }
  }
}

TEST(ToolCallGrammar, TakesTagsAsSpecialTokens) {
  const auto special = [](const char* content) {
    return small_vocabulary()->special_tokens(content).at(0);
  };
  Matcher matcher(Grammar::tool_calls(tools(), {}, {.until = "</think>", .never = {"<tool_call>"}}),
                  small_vocabulary());
  const auto text = [&](std::string_view bytes) {
    for (const char c : bytes) ASSERT_TRUE(matcher.accept(static_cast<uint8_t>(c))) << bytes;
  };
  text("let me see <tool_call");
  EXPECT_FALSE(matcher.accept('>'));
  EXPECT_FALSE(matcher.accept(special("<tool_call>")));
  EXPECT_FALSE(matcher.accept(special("<s>")));
  EXPECT_FALSE(matcher.accept(kStopToken));
  EXPECT_TRUE(matcher.accept(special("</think>")));
  text("\n");
  EXPECT_FALSE(matcher.accept(special("</tool_call>")));
  EXPECT_TRUE(matcher.accept(special("<tool_call>")));
  text("\n<function=get_weather>\n<parameter=city>\nRome");
  EXPECT_FALSE(matcher.accept(special("<tool_call>")));
  text("\n</parameter>\n</function>\n");
  EXPECT_FALSE(matcher.is_complete());
  EXPECT_TRUE(matcher.accept(special("</tool_call>")));
  EXPECT_TRUE(matcher.is_complete());
  EXPECT_TRUE(matcher.accept(kStopToken));
  EXPECT_TRUE(matcher.finished());
}

// What the grammar lets through, the parser reads as calls whose arguments satisfy their schema.
TEST(ToolCallGrammar, RandomWalksAreCallsWithValidArguments) {
  std::mt19937 random(5);
  std::size_t calls = 0;
  for (unsigned round = 0; round < 300; ++round) {
    const auto grammar =
        Grammar::tool_calls(tools(), {.name = round % 2 == 0 ? "set" : "", .parallel = true},
                            {.until = "</think>", .never = {"<tool_call>"}});
    Matcher matcher(grammar, small_vocabulary());
    std::string text = random_walk(matcher, random, 50 + round);
    AssistantFormat format{.reasoning = ReasoningFormat::kNemotronV3,
                           .tool_calls = ToolCallFormat::kQwen3Coder,
                           .prompt = PromptReasoning::kOpen,
                           .tools = ToolParameters(tools())};
    AssistantParser parser(format);
    parser.push(text);
    parser.finish();
    const AssistantMessage& message = parser.message();
    EXPECT_EQ(message.content, "") << text;
    EXPECT_EQ(message.malformed, 0) << text;
    ASSERT_FALSE(message.tool_calls.empty()) << text;
    for (const ToolCall& made : message.tool_calls) {
      ++calls;
      const Json arguments = Json::parse(made.arguments);
      EXPECT_TRUE(SchemaValidator(parameters(made.name)).holds(arguments)) << made.arguments << "\n"
                                                                           << text;
    }
  }
  EXPECT_GE(calls, 300u);
}

std::string refusal(const std::string& properties, const std::string& rest = "") {
  try {
    (void)Grammar::tool_calls(
        Json::parse(R"([{"name": "f", "parameters": {"type": "object", "properties": )" +
                    properties + rest + "}}]"),
        {});
  } catch (const Error& e) {
    return e.what();
  }
  return "not refused";
}

TEST(ToolCallGrammar, RefusesByNameAndPointer) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal(R"({"a": {"not": {}}})"),
              testing::AllOf(HasSubstr("tools[0].parameters#/properties/a"), HasSubstr("not")));
  EXPECT_THAT(refusal(R"({"a": {"type": ["string", "object"]}})"),
              HasSubstr("a string, or something else with constraints"));
  EXPECT_THAT(
      refusal(R"({"a": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 1}]}})"),
      HasSubstr("a string, or something else with constraints"));
  EXPECT_THAT(refusal(R"({"a": {"anyOf": [{"type": "string"}, {"const": 5}]}})"),
              HasSubstr("a string, or something else with constraints"));
  EXPECT_THAT(refusal(R"({"a": {"enum": ["5", 5]}})"), HasSubstr("cannot tell this value"));
  EXPECT_THAT(refusal(R"({"a": {"enum": ["a</parameter>"]}})"), HasSubstr("cannot tell"));
  EXPECT_THAT(refusal(R"({"a": {"type": "object", "properties": {"<": {}}}})"),
              HasSubstr("'<' in a tool call"));
  EXPECT_THAT(refusal(R"({"a": {"type": ""}})"), HasSubstr("type: \"\""));
  EXPECT_THAT(refusal(R"({"a": {"enum": 5}})"), HasSubstr("not a list"));
  EXPECT_THAT(refusal(R"({"a": {"properties": {}}})"), HasSubstr("without a type"));
  EXPECT_THAT(refusal(R"({"a>b": {}})"), HasSubstr("a name that tags cannot hold"));
  EXPECT_THAT(refusal(R"({"a": false})"), HasSubstr("as a parameter"));
  EXPECT_THAT(refusal(R"({"a": {"$ref": "#"}})", R"(, "$ref": "#")"), HasSubstr("beside $ref"));
  EXPECT_THAT(refusal(R"({"a": {"$ref": "#/properties/a"}})"), HasSubstr("chain of references"));
  EXPECT_THAT(refusal(R"({"a": {"anyOf": [{"$ref": "#/properties/a"}, {"type": "null"}]}})"),
              HasSubstr("chain of branches"));
  EXPECT_THAT(refusal("{}", R"(, "required": ["a"])"), HasSubstr("is no property"));
  EXPECT_THAT(refusal("{}", R"(, "additionalProperties": {"type": "integer"})"),
              HasSubstr("any string"));
  EXPECT_THAT(refusal("1"), HasSubstr("not an object"));
  const auto thrown = [](const char* json, const ToolChoice& choice) -> std::string {
    try {
      (void)Grammar::tool_calls(Json::parse(json), choice);
    } catch (const Error& e) {
      return e.what();
    }
    return "not refused";
  };
  EXPECT_THAT(thrown(R"([{"name": "f"}])", {.name = "g", .parallel = true}), HasSubstr("\"g\""));
  EXPECT_THAT(thrown("[]", {}), HasSubstr("no tools"));
  EXPECT_THAT(thrown("{}", {}), HasSubstr("not a list"));
  EXPECT_THAT(thrown(R"([{"name": "a>b"}])", {}), HasSubstr("a>b"));
  EXPECT_THAT(thrown(R"([{"name": "f", "parameters": {"type": "array"}}])", {}),
              HasSubstr("parameters are an object"));
}

}  // namespace
}  // namespace levin::text::grammar
