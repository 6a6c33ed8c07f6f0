#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "grammar_support.h"
#include "schema_validator.h"

namespace levin::text::grammar {
namespace {

struct SchemaCase {
  const char* schema;
  std::vector<const char*> good;
  std::vector<const char*> bad;
};

// Documents in `good` are let through, those in `bad` are not.
const std::vector<SchemaCase>& schema_cases() {
  static const std::vector<SchemaCase> cases = {
      {R"({"type": "null"})", {"null", " null", "\n  null"}, {"", "nul", "null ", "nullx", "NULL"}},
      {R"({"type": "boolean"})", {"true", "false"}, {"True", "1", "\"true\""}},
      {R"({"type": "integer"})",
       {"0", "-0", "7", "-12", "123456789012345678"},
       {"01", "+1", "1.0", "1e2", "-", "", "1234567890123456789"}},
      {R"({"type": "number"})",
       {"0", "-1.5", "1e5", "2.25E-10", "0.000001"},
       {"1.", ".5", "1e", "1e+", "01", "NaN", "1e100", "--1"}},
      {R"({"type": "string"})",
       {R"("")", R"("abc")", R"("é€😀")", R"("\"\\\/\b\f\n\r\t")", R"("\u00e9\ud83d\ude00")",
        R"("</think> <b>")"},
       {R"(")", "\"\n\"", R"("\x")", R"("\ud83d")", R"("\ude00")", R"("\ud83dx")", R"("\u00g0")",
        "\"\xff\"", "\"\xc3\"", "\"\xed\xa0\x80\"", "\"\xc0\x80\"", "'a'", R"("a"")"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("abc")", R"("é€")", R"("\n\u00e9😀")"},
       {R"("a")", R"("abcd")", R"("")", R"("\n")"}},
      {R"({"type": "string", "minLength": 2})", {R"("ab")", R"("abcdefgh")"}, {R"("a")"}},
      {R"({"type": "string", "maxLength": 0})", {R"("")"}, {R"("a")"}},
      {R"({"type": "string", "pattern": "^[a-c]+\\d{2,3}$"})",
       {R"("a12")", R"("abcabc123")"},
       {R"("12")", R"("a1")", R"("d12")", R"("a1234")", R"("xa12")"}},
      {R"({"type": "string", "pattern": "b+"})",
       {R"("b")", R"("xxbbyy")", R"("\nb")"},
       {R"("")", R"("aaa")"}},
      {R"({"type": "string", "pattern": "^(?:yes|no)$|^maybe"})",
       {R"("yes")", R"("no")", R"("maybe not")"},
       {R"("yes!")", R"("or maybe")"}},
      {R"({"type": "string", "pattern": "^\"\\\\\\t[^a-z]$"})",
       {R"("\"\\\tA")", R"("\"\\\té")", R"("\"\\\t\"")", R"("\"\\\t\u0001")"},
       {R"("\"\\\ta")", R"("\"\\\t")"}},
      {R"({"type": "string", "pattern": "^[\\u00e0-\\u00ff]{2}.?$"})",
       {R"("éà")", R"("éàx")", R"("éà😀")"},
       {R"("ea")", R"("é")", R"("éà\n")"}},
      {R"({"type": "string", "format": "date"})",
       {R"("2024-02-28")", R"("1999-12-31")"},
       {R"("2024-13-01")", R"("2024-04-31")", R"("24-01-01")"}},
      {R"({"type": "string", "format": "date-time"})",
       {R"("2024-02-28T23:59:59Z")", R"("2024-02-28T00:00:00.5+01:30")"},
       {R"("2024-02-28")", R"("2024-02-28T24:00:00Z")", R"("2024-02-28 23:59:59Z")"}},
      {R"({"type": "string", "format": "uuid"})",
       {R"("123e4567-e89b-12d3-a456-426614174000")"},
       {R"("123e4567-e89b-12d3-a456-42661417400")"}},
      {R"({"type": "string", "format": "ipv4"})",
       {R"("0.0.0.0")", R"("255.10.1.199")"},
       {R"("256.1.1.1")", R"("1.2.3")"}},
      {R"({"type": "string", "format": "email"})",
       {R"("a.b@example.org")"},
       {R"("a@b")", R"("@")"}},
      {R"({"type": "string", "format": "uri"})",
       {R"("https://example.org/a/b?c=d")"},
       {R"("example")"}},
      {R"({"type": "integer", "minimum": 3, "maximum": 120})",
       {"3", "9", "10", "99", "100", "120"},
       {"2", "121", "0", "-3", "200", "1000", "03", "4.0"}},
      {R"({"type": "integer", "minimum": -15, "exclusiveMaximum": 5})",
       {"-15", "-9", "-1", "0", "4"},
       {"-16", "5", "-20", "10"}},
      {R"({"type": "integer", "exclusiveMinimum": 0})", {"1", "9", "10", "987654321"}, {"0", "-1"}},
      {R"({"type": "integer", "maximum": -3})", {"-3", "-4", "-100"}, {"-2", "0", "3"}},
      {R"({"type": "number", "minimum": 0.25, "maximum": 10})",
       {"0.25", "0.250", "0.3", "1", "9.999", "10", "10.0", "10.00"},
       {"0.24", "0.2", "0", "10.01", "11", "-1", "0.25e0"}},
      {R"({"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 0})",
       {"-1", "-1.4999", "-0.001"},
       {"-1.5", "-1.50", "0", "-2", "1", "-0", "-0.0"}},
      {R"({"enum": ["a", "ab", "b\"", 1, 12, null, true, {"k": [1]}, 2.5]})",
       {R"("a")", R"("ab")", R"("b\"")", "1", "12", "null", "true", R"({"k":[1]})", "2.5"},
       {R"("abc")", "2", "false", "\"\""}},
      {R"({"type": "string", "enum": ["a", 1]})", {R"("a")"}, {"1"}},
      {R"({"const": "é"})", {R"("é")"}, {R"("e")"}},
      {R"({"type": ["string", "null"]})", {"null", R"("x")"}, {"1", "true"}},
      {R"({"type": "array", "items": {"type": "integer"}})",
       {"[]", "[ ]", "[1]", "[1, 2,3 , 4]", "[\n  1,\n  2\n]"},
       {"[1,]", "[,1]", "[1 2]", "[\"a\"]", "[1"}},
      {R"({"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "boolean"}})",
       {"[true]", "[true,false,true]"},
       {"[]", "[true,true,true,true]"}},
      {R"({"type": "array", "minItems": 2})", {"[1,\"a\"]", "[[],{},null]"}, {"[1]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"type": "array", "items": false})", {"[]"}, {"[1]"}},
      {R"({"type": "object"})", {"{}", R"({"a":{"b":[1]}, "c":""})"}, {"[]", R"({"a"})"}},
      {R"({"type": "object", "properties": {}})", {"{}", "{ }"}, {R"({"a": 1})"}},
      {R"({"type": "object", "additionalProperties": false})", {"{}"}, {R"({"a":1})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"},
           "c\"": {}}, "required": ["b"]})",
       {R"({"b":null})", R"({"a":1,"b":null})", R"({"a": 1, "b": null, "c\"": [2]})",
        R"({ "b" : null , "c\"":0 })"},
       {"{}", R"({"a":1})", R"({"b":null,"a":1})", R"({"b":null,"d":1})", R"({"b":null,"b":null})",
        R"({"b":null,})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}})",
       {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
       {R"({"b":1,"a":2})", R"({,"a":1})"}},
      {R"({"type": "object", "properties": {"ab": {"type": "integer"}, "é": true},
           "additionalProperties": {"type": "boolean"}})",
       {"{}", R"({"ab":1})", R"({"ab":1,"a":true})", R"({"abc":true,"":false,"b":true})",
        R"({"ê":true,"éé":true})", R"({"x y":true})"},
       {R"({"a":1})", R"({"ab":true})", R"({"\u0061b":true})", R"({"a":true,"ab":1})",
        R"({"é":1,"é":true})"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"k":1,"l":2})"},
       {R"({"k":"1"})"}},
      {R"({"type": "object", "required": ["x"]})", {R"({"x":1})", R"({"x":[],"y":2})"}, {"{}"}},
      {R"({"properties": {"a": {"type": "integer"}}, "required": ["a"]})", {R"({"a":1})"}, {"1"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]})",
       {"1", "[]", R"(["a"])"},
       {R"("a")", "[1]"}},
      {R"({"oneOf": [{"type": "integer"}, {"type": "string"}]})", {"1", R"("a")"}, {"null"}},
      {R"({"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
             "required": ["kind"]},
            {"type": "object", "properties": {"kind": {"enum": ["dog"]}}, "required": ["kind"]}]})",
       {R"({"kind":"cat","lives":9})", R"({"kind":"dog"})"},
       {R"({"kind":"dog","lives":9})", R"({"kind":"cow"})"}},
      {R"({"allOf": [{"type": "integer"}], "description": "one"})", {"1"}, {"\"1\""}},
      {R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
            "value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"},
            {"type": "null"}]}}, "required": ["value", "next"]}}})",
       {R"({"value":1,"next":null})",
        R"({"value":1,"next":{"value":2,"next":{"value":3,"next":null}}})"},
       {R"({"value":1})", R"({"value":1,"next":{"value":2}})"}},
      {R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[],[[]]]"}, {"[1]", "[[]"}},
      {R"({"type": "object", "properties": {"a/b~c": {"$ref": "#/definitions/x~1y"}},
           "definitions": {"x/y": {"type": "null"}}})",
       {R"({"a/b~c":null})"},
       {R"({"a/b~c":1})"}},
      {R"({})", {"1", "[]", R"({"a":null})", "\"x\"", "-1.5e3"}, {"", "[", "tru"}},
      {R"(true)", {"1", "{}"}, {""}},
      {R"({"anyOf": [{"type": "string"}, false]})", {R"("a")"}, {"1"}},
  };
  return cases;
}

TEST(JsonSchema, LetsValidDocumentsThroughAndNoOthers) {
  for (const SchemaCase& example : schema_cases()) {
    SCOPED_TRACE(example.schema);
    const Json schema = Json::parse(example.schema);
    const auto grammar = Grammar::json_schema(schema);
    for (const char* text : example.good) {
      EXPECT_TRUE(accepts(grammar, text)) << text;
      if (text[0] != ' ' && text[0] != '\n' && !schema.contains("format")) {
        EXPECT_TRUE(SchemaValidator(schema).holds(Json::parse(text)))
            << text << " is a bad example";
      }
    }
    for (const char* text : example.bad) EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(JsonSchema, LetsDocumentsThroughHoweverTheyAreTokenized) {
  std::mt19937 random(3);
  for (const SchemaCase& example : schema_cases()) {
    SCOPED_TRACE(example.schema);
    const auto grammar = Grammar::json_schema(Json::parse(example.schema));
    for (const char* text : example.good) {
      for (int round = 0; round < 10; ++round) {
        Matcher matcher(grammar, small_vocabulary());
        for (const int32_t token : tokenize(text, random)) {
          ASSERT_TRUE(is_allowed(mask_of(matcher), token)) << text << " token " << token;
          ASSERT_TRUE(matcher.accept(token)) << text << " token " << token;
        }
        EXPECT_TRUE(is_allowed(mask_of(matcher), kStopToken)) << text;
      }
    }
  }
}

TEST(JsonSchema, RandomWalksEndInValidDocuments) {
  std::mt19937 random(4);
  for (const SchemaCase& example : schema_cases()) {
    SCOPED_TRACE(example.schema);
    const Json schema = Json::parse(example.schema);
    const auto grammar = Grammar::json_schema(schema);
    for (int round = 0; round < 20; ++round) {
      Matcher matcher(grammar, small_vocabulary());
      const std::string text = random_walk(matcher, random, 5u * static_cast<unsigned>(round));
      ASSERT_TRUE(Json::accept(text)) << text;
      EXPECT_TRUE(SchemaValidator(schema).holds(Json::parse(text))) << text;
    }
  }
}

// Every way in which models write JSON is open, and nowhere can one go on with spaces for ever.
TEST(JsonSchema, WhiteSpaceIsAllowedAndBounded) {
  const auto typed = Grammar::json_schema(Json::parse(
      R"({"type": "object", "required": ["a"], "additionalProperties": {"type": "null"},
          "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"enum": [1, 2]}},
          "c": {"type": "object"}, "d": {"anyOf": [{"type": "array"}, {"type": "boolean"}]}}})"));
  const Json document = Json::parse(
      R"({"a": 1, "b": [1, 2], "c": {"x": {}, "y": [[], 2.5]}, "d": [true], "e": null})");
  const std::string spaced =  // as Python writes it
      R"({"a": 1, "b": [1, 2], "c": {"x": {}, "y": [[], 2.5]}, "d": [true], "e": null})";
  const std::string blanks(kMaxWhiteSpace, ' ');
  for (const auto& grammar : {typed, Grammar::json_object(), Grammar::json_schema(Json(true))}) {
    for (const std::string& text : {document.dump(), document.dump(2), document.dump(4), spaced}) {
      EXPECT_TRUE(accepts(grammar, text)) << text;
      EXPECT_TRUE(accepts(grammar, "\n" + text)) << text;
      for (std::size_t size = 0; size <= text.size(); ++size) {
        const std::string begin = text.substr(0, size);
        if (std::ranges::count(begin, '"') % 2 != 0) continue;  // inside a string they are its text
        for (const char blank : {' ', '\n', '\t', '\r'}) {
          Matcher matcher(grammar, small_vocabulary());
          for (const char c : begin) ASSERT_TRUE(matcher.accept(static_cast<uint8_t>(c))) << begin;
          int count = 0;
          while (count <= kMaxWhiteSpace && matcher.accept(static_cast<uint8_t>(blank))) ++count;
          EXPECT_LE(count, kMaxWhiteSpace) << begin;
        }
      }
    }
    EXPECT_TRUE(
        accepts(grammar, "{" + blanks + "\"a\"" + blanks + ":" + blanks + "1" + blanks + "}"));
    EXPECT_FALSE(accepts(grammar, "{ " + blanks + "\"a\": 1}"));
  }
}

std::string refusal(const std::string& schema) {
  try {
    (void)Grammar::json_schema(Json::parse(schema));
  } catch (const Error& e) {
    return e.what();
  }
  return "not refused";
}

TEST(JsonSchema, RefusesByNameAndPointer) {
  struct Refused {
    const char* schema;
    const char* pointer;
    const char* name;
  };
  const Refused refused[] = {
      {R"({"not": {}})", "schema#", "not"},
      {R"({"properties": {"a": {"if": {}}}})", "schema#/properties/a", "if"},
      {R"({"properties": {"a/b": {"items": {"uniqueItems": true}}}})",
       "schema#/properties/a~1b/items", "uniqueItems"},
      {R"({"patternProperties": {}})", "schema#", "patternProperties"},
      {R"({"minProperties": 1})", "schema#", "minProperties"},
      {R"({"prefixItems": []})", "schema#", "prefixItems"},
      {R"({"type": "integer", "multipleOf": 2})", "schema#", "multipleOf"},
      {R"({"allOf": [{}, {}]})", "schema#/allOf", "more than one branch"},
      {R"({"anyOf": []})", "schema#/anyOf", "not a list of schemas"},
      {R"({"anyOf": [{}], "minimum": 1})", "schema#", "minimum: beside anyOf"},
      {R"({"anyOf": [{}], "enum": [1]})", "schema#", "enum: beside anyOf"},
      {R"({"enum": ["abc"], "minLength": 1})", "schema#", "minLength: beside enum"},
      {R"({"$ref": "#/$defs/a", "type": "object"})", "schema#", "type: beside $ref"},
      {R"({"oneOf": [{"type": "number"}, {"type": "integer"}]})", "schema#/oneOf/1",
       "may overlap with branch 0"},
      {R"({"oneOf": [{"type": "object"}, {"type": "object"}]})", "schema#/oneOf/1", "overlap"},
      {R"({"type": "file"})", "schema#/type", "\"file\""},
      {R"({"type": 1})", "schema#/type", "not a name"},
      {R"({"type": []})", "schema#/type", "not a name"},
      {R"({"enum": 1})", "schema#/enum", "not a list"},
      {R"({"$ref": "#/$defs/none"})", "schema#/$ref", "does not exist"},
      {R"({"$ref": "https://example.org/x"})", "schema#/$ref", "is not local"},
      {R"({"$ref": "#/a~2"})", "schema#/$ref", "not a JSON pointer"},
      {R"({"$ref": 1})", "schema#/$ref", "not a string"},
      {R"({"properties": []})", "schema#/properties", "not an object"},
      {R"({"required": "a"})", "schema#/required", "not a list"},
      {R"({"required": [1]})", "schema#/required", "not a list of names"},
      {R"({"items": [{}]})", "schema#/items", "a schema is an object or a boolean"},
      {R"({"minItems": -1})", "schema#/minItems", "not a whole number"},
      {R"({"minItems": 1.5})", "schema#/minItems", "not a whole number"},
      {R"({"minItems": 3, "maxItems": 2})", "schema#", "maxItems: below minItems"},
      {R"({"maxLength": 1e30})", "schema#/maxLength", "above"},
      {R"({"minimum": "1"})", "schema#/minimum", "not a number"},
      {R"({"exclusiveMinimum": true})", "schema#/exclusiveMinimum", "not a number"},
      {R"({"type": "number", "minimum": 1e300})", "schema#/minimum", "digits"},
      {R"({"type": "number", "minimum": 1e-20})", "schema#/minimum", "digits"},
      {R"({"pattern": "a", "minLength": 1})", "schema#", "pattern: together with a length"},
      {R"({"pattern": "a", "format": "date"})", "schema#", "together with format"},
      {R"({"pattern": 1})", "schema#/pattern", "not a string"},
      {R"({"format": "iri-reference"})", "schema#/format", "\"iri-reference\""},
      {R"x({"pattern": "a(?=b)"})x", "schema#", "look-around"},
      {R"x({"pattern": "(?<n>a)"})x", "schema#", "named group"},
      {R"({"pattern": "(a)\\1"})", "schema#", "\\1"},
      {R"({"pattern": "\\bword"})", "schema#", "\\b"},
      {R"({"pattern": "\\p{L}"})", "schema#", "\\p"},
      {R"({"pattern": "a^b"})", "schema#", "anchor inside"},
      {R"x({"pattern": "(^a)"})x", "schema#", "anchor inside"},
      {R"({"pattern": "a**"})", "schema#", "quantifier behind"},
      {R"({"pattern": "*a"})", "schema#", "quantifier of nothing"},
      {R"({"pattern": "a{2,1}"})", "schema#", "out of order"},
      {R"({"pattern": "a{1001}"})", "schema#", "repetition count above 1000"},
      {R"({"pattern": "a{x}"})", "schema#", "no repetition count"},
      {R"({"pattern": "[z-a]"})", "schema#", "range out of order"},
      {R"({"pattern": "[a-\\d]"})", "schema#", "range between classes"},
      {R"({"pattern": "[a"})", "schema#", "without its ]"},
      {R"({"pattern": "(a"})", "schema#", "without its )"},
      {R"x({"pattern": "a)"})x", "schema#", "without its ("},
      {R"({"pattern": "\\u12"})", "schema#", "unfinished escape"},
      {R"({"pattern": "a\\"})", "schema#", "at the end"},
      {R"([])", "schema#", "a schema is an object"},
  };
  for (const Refused& expected : refused) {
    const std::string message = refusal(expected.schema);
    EXPECT_THAT(message, testing::HasSubstr(expected.name)) << expected.schema;
    EXPECT_THAT(message, testing::HasSubstr(expected.pointer)) << expected.schema;
  }
}

TEST(JsonSchema, RefusesWhatNothingSatisfies) {
  for (const char* schema :
       {R"(false)", R"({"enum": []})", R"({"type": "integer", "enum": ["a"]})",
        R"({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]})",
        R"({"type": "integer", "minimum": 5, "maximum": 4})",
        R"({"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 5})",
        R"({"type": "array", "items": false, "minItems": 1})",
        R"({"properties": {}, "required": ["x"], "additionalProperties": false})"}) {
    EXPECT_THAT(refusal(schema), testing::HasSubstr("no finite document")) << schema;
  }
}

TEST(JsonSchema, RefusesToRunInCircles) {
  for (const char* schema :
       {R"({"$ref": "#"})", R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})",
        R"({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"},
            {"type": "string"}]}}, "$ref": "#/$defs/a"})"}) {
    EXPECT_THAT(refusal(schema), testing::HasSubstr("refers to itself")) << schema;
  }
}

TEST(JsonSchema, BranchesThatCannotBeSatisfiedAreLeftOut) {
  const auto grammar = Grammar::json_schema(Json::parse(R"({"type": "object", "properties": {
      "loop": {"$ref": "#/$defs/loop"}, "x": {"type": "null"}},
      "$defs": {"loop": {"type": "object", "properties": {"l": {"$ref": "#/$defs/loop"}},
      "required": ["l"]}}})"));
  EXPECT_TRUE(accepts(grammar, R"({"x":null})"));
  Matcher matcher(grammar, small_vocabulary());
  for (const char c : std::string("{\"")) ASSERT_TRUE(matcher.accept(c));
  EXPECT_FALSE(matcher.accept('l'));
}

TEST(JsonSchema, HostileSchemasAreBounded) {
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += R"({"items": )";
  deep += "{}" + std::string(5000, '}');
  EXPECT_THAT(refusal(deep), testing::HasSubstr("nested"));

  // Definitions that double at every step are compiled once each.
  Json doubling = {{"$ref", "#/$defs/d0"}};
  for (int i = 0; i < 60; ++i) {
    const Json next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    doubling["$defs"]["d" + std::to_string(i)] = {{"type", "object"},
                                                  {"properties", {{"a", next}, {"b", next}}}};
  }
  doubling["$defs"]["d60"] = {{"type", "null"}};
  EXPECT_TRUE(accepts(Grammar::json_schema(doubling), R"({"a":{"b":{}},"b":{}})"));

  // The keyword "not" must not read like a word of the sentence: "found not".
  EXPECT_THAT(refusal(R"({"not": {"type": "null"}})"), testing::HasSubstr("keyword \"not\""));

  Json huge_enum;
  for (int i = 0; i < 20001; ++i) huge_enum["enum"].push_back(i);
  EXPECT_THAT(refusal(huge_enum.dump()), testing::HasSubstr("more than 20000 values"));
  huge_enum["enum"].erase(0);
  EXPECT_TRUE(accepts(Grammar::json_schema(huge_enum), "20000"));

  EXPECT_THAT(refusal(R"({"pattern": "((((a{1000}){1000}){1000}){1000}){1000}"})"),
              testing::HasSubstr("too large"));
  EXPECT_THAT(refusal(R"({"pattern": "((((){1000}){1000}){1000}){1000}"})"),
              testing::HasSubstr("too large"));
  EXPECT_THAT(refusal(R"({"pattern": ")" + std::string(100, '(') + std::string(100, ')') + "\"}"),
              testing::HasSubstr("nested groups"));
  EXPECT_THAT(refusal(R"({"type": "string", "maxLength": 200000})"),
              testing::HasSubstr("too large"));
  EXPECT_THAT(refusal(R"({"type": "array", "maxItems": 200000})"), testing::HasSubstr("too large"));
  EXPECT_THAT(refusal(R"({"properties": {"a": {"type": "string", "maxLength": 262144}}})"),
              testing::HasSubstr("schema#/properties/a"));
  Json branches;
  for (int i = 0; i < 501; ++i) branches["anyOf"].push_back({{"type", "array"}});
  EXPECT_THAT(refusal(branches.dump()), testing::HasSubstr("more than 500 branches"));
  Json wide;
  for (int i = 0; i < 1001; ++i) wide["properties"]["p" + std::to_string(i)] = true;
  EXPECT_THAT(refusal(wide.dump()), testing::HasSubstr("more than 1000"));
}

// Every level can be read in two ways: 2^n readings of n brackets.
TEST(JsonSchema, AmbiguousGrammarsStayBounded) {
  const auto grammar = Grammar::json_schema(Json::parse(R"({"$ref": "#/$defs/n", "$defs": {"n": {
      "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/n"}},
                {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 9}]}}})"));
  const std::string text = std::string(200, '[') + std::string(200, ']');
  EXPECT_TRUE(accepts(grammar, text));
}

}  // namespace
}  // namespace levin::text::grammar
