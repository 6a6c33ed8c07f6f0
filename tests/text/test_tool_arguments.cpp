#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "text/python_literal.h"
#include "text/tool_arguments.h"

namespace levin::text {
namespace {

using nlohmann::ordered_json;

JsonTypes types_of(const char* schema) {
  const auto json = ordered_json::parse(schema);
  return types_of_schema(json, json);
}

TEST(TypesOfSchema, CollectsWhatTheSchemaAllows) {
  EXPECT_EQ(types_of(R"({})"), kString);
  EXPECT_EQ(types_of(R"(true)"), kString);
  EXPECT_EQ(types_of(R"({"type": "integer"})"), kInteger);
  EXPECT_EQ(types_of(R"({"type": "Float"})"), kNumber);
  EXPECT_EQ(types_of(R"({"type": "date"})"), kString);
  EXPECT_EQ(types_of(R"({"type": ["array", "null"]})"), kArray | kNull);
  EXPECT_EQ(types_of(R"({"enum": [1, "a", null, 2.5, true, {}, []]})"),
            kInteger | kString | kNull | kNumber | kBoolean | kObject | kArray);
  EXPECT_EQ(types_of(R"({"const": false})"), kBoolean);
  EXPECT_EQ(types_of(R"({"anyOf": [{"type": "object"}, {"type": "null"}]})"), kObject | kNull);
  EXPECT_EQ(types_of(R"({"$defs": {"a": {"type": "array"}}, "$ref": "#/$defs/a"})"), kArray);
  EXPECT_EQ(types_of(R"({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})"), kString);
  EXPECT_EQ(types_of(R"({"$ref": "#/nowhere"})"), kString);
  EXPECT_EQ(types_of(R"({"$ref": "#/~9"})"), kString);
}

TEST(ArgumentToJson, TakesTheFirstTypeThatFits) {
  const auto check = [](const char* text, JsonTypes types, const char* expected) {
    EXPECT_EQ(argument_to_json(text, types), expected) << text;
  };
  check("12", kString, R"("12")");
  check("12", kString | kInteger, "12");
  check(" 12\n", kInteger, "12");
  check("+12", kInteger, "12");
  check("-007", kInteger, "-7");
  check("0", kInteger, "0");
  check("00", kInteger, "0");
  check("3.0", kInteger, "3.0");
  check("1e3", kInteger, "1e3");
  check("3.5", kInteger, R"("3.5")");
  check("12abc", kInteger, R"("12abc")");
  check("", kInteger, R"("")");
  check("-", kInteger, R"("-")");
  check("123456789012345678901234567890", kInteger, "123456789012345678901234567890");
  check("3.50", kNumber, "3.50");
  check("-1E-5", kNumber, "-1E-5");
  check(".5", kNumber, R"(".5")");
  check("1e999", kNumber, R"("1e999")");
  check("nan", kNumber, R"("nan")");
  check("True", kBoolean, "true");
  check("FALSE", kBoolean, "false");
  check("yes", kBoolean, R"("yes")");
  check("null", kString, R"("null")");
  check("null", kString | kNull, "null");
  check("None", kInteger | kNull, "null");
  check("nothing", kInteger | kNull, R"("nothing")");
  check(" {\"a\": 1} ", kObject, R"({"a": 1})");
  check("[1]", kObject, R"("[1]")");
  check("[1]", kObject | kArray, "[1]");
  check("{'a': (1)}", kObject, R"("{'a': (1)}")");
  check("[1e999]", kArray, R"("[1e999]")");
  EXPECT_EQ(argument_to_json(std::string_view("4\0 2", 4), kInteger), R"("4\u0000 2")");
  EXPECT_EQ(argument_to_json(std::string_view("[]\0]", 4), kArray), R"("[]\u0000]")");
  check("a\x01\n\"\\\t", kString, R"("a\u0001\n\"\\\t")");
}

TEST(PythonLiteral, BecomesJson) {
  EXPECT_EQ(python_literal_to_json("{'a': [True, None, -1.5e3], 'b': False}"),
            R"({"a": [true, null, -1.5e3], "b": false})");
  EXPECT_EQ(python_literal_to_json(R"(['it\'s', "d'e", 'say "hi"', '\n\u00e9'])"),
            R"(["it's", "d'e", "say \"hi\"", "\n\u00e9"])");
  for (const char* bad : {"{'a': x}", "['open", "{'a' 1}", "(1, 2)", "['\\x41']", "", "[1,]"}) {
    EXPECT_EQ(python_literal_to_json(bad), std::nullopt) << bad;
  }
}

TEST(ToolParameters, KnowsTheTypesOfParameters) {
  const ToolParameters tools(ordered_json::parse(R"([
    {"type": "function", "function": {"name": "f", "parameters": {
      "$defs": {"n": {"type": "number"}},
      "properties": {"x": {"$ref": "#/$defs/n"}, "y": true}}}},
    {"name": "g"}, {"name": "h", "parameters": null}])"));
  EXPECT_TRUE(tools.contains("f") && tools.contains("g") && tools.contains("h"));
  EXPECT_FALSE(tools.contains("x"));
  EXPECT_EQ(tools.types("f", "x"), kNumber);
  EXPECT_EQ(tools.types("f", "y"), kString);
  EXPECT_EQ(tools.types("f", "z"), kString);
  EXPECT_EQ(tools.types("nowhere", "x"), kString);
}

TEST(ToolParameters, RefusesWhatIsNoTool) {
  for (const char* bad : {R"({})", R"([1])", R"([{"function": 1}])", R"([{"function": {}}])",
                          R"([{"name": 5}])", R"([{"name": "f", "parameters": []}])"}) {
    EXPECT_THROW(ToolParameters(ordered_json::parse(bad)), Error) << bad;
  }
  try {
    ToolParameters tools(ordered_json::parse(R"([{"name": "f"}, 1])"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("tools[1]"));
  }
}

}  // namespace
}  // namespace levin::text
