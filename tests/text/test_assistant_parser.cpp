#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "assistant_cases.h"
#include "core/error.h"
#include "text/chat_template.h"
#include "text/utf8.h"
#include "tiny_tokenizer.h"

namespace levin::text {
namespace {

using nlohmann::ordered_json;

// Puts deltas together as a client does, holding them to what a client relies on.
class Client {
 public:
  void add(const AssistantDelta& delta) {
    message.reasoning += whole(delta.reasoning);
    message.content += whole(delta.content);
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (call.index == message.tool_calls.size()) {
        EXPECT_FALSE(call.id.empty());
        EXPECT_FALSE(call.name.empty());
        message.tool_calls.push_back(
            {.id = call.id, .name = call.name, .arguments = {}, .closed = false});
      } else {
        EXPECT_EQ(call.index + 1, message.tool_calls.size()) << "an earlier call goes on";
        EXPECT_TRUE(call.id.empty() && call.name.empty());
        EXPECT_FALSE(call.arguments.empty()) << "a delta of nothing";
      }
      message.tool_calls.back().arguments += whole(call.arguments);
    }
  }
  AssistantMessage message;

 private:
  static const std::string& whole(const std::string& text) {
    EXPECT_FALSE(find_invalid_utf8(text)) << "a character was cut";
    return text;
  }
};

AssistantMessage parse_pieces(const AssistantFormat& format,
                              const std::vector<std::string_view>& pieces) {
  AssistantParser parser(format);
  Client client;
  for (const std::string_view piece : pieces) client.add(parser.push(piece));
  client.add(parser.finish());
  const AssistantMessage& message = parser.message();
  EXPECT_EQ(client.message.reasoning, message.reasoning);
  EXPECT_EQ(client.message.content, message.content);
  EXPECT_EQ(client.message.tool_calls.size(), message.tool_calls.size());
  for (std::size_t i = 0; i < client.message.tool_calls.size(); ++i) {
    EXPECT_EQ(client.message.tool_calls[i].id, message.tool_calls[i].id);
    EXPECT_EQ(client.message.tool_calls[i].name, message.tool_calls[i].name);
    EXPECT_EQ(client.message.tool_calls[i].arguments, message.tool_calls[i].arguments);
  }
  return message;
}

AssistantMessage parse(const AssistantFormat& format, std::string_view text) {
  return parse_pieces(format, {text});
}

// Every cut into two, every byte alone, and random cuts into many.
void for_each_split(std::string_view text,
                    const std::function<void(const std::vector<std::string_view>&)>& check) {
  for (std::size_t at = 0; at <= text.size(); ++at) check({text.substr(0, at), text.substr(at)});
  std::vector<std::string_view> bytes;
  for (std::size_t at = 0; at < text.size(); ++at) bytes.push_back(text.substr(at, 1));
  check(bytes);
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string_view> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = 1 + random() % 9;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    check(pieces);
  }
}

TEST(AssistantParser, UnderstandsEveryTranscriptHoweverItIsCut) {
  for (const AssistantCase& transcript : assistant_cases()) {
    SCOPED_TRACE(transcript.name);
    EXPECT_EQ(to_json(parse(transcript.format, transcript.output)).dump(1),
              transcript.message.dump(1));
    for_each_split(transcript.output, [&](const std::vector<std::string_view>& pieces) {
      const ordered_json message = to_json(parse_pieces(transcript.format, pieces));
      if (message != transcript.message) {
        EXPECT_EQ(message.dump(1), transcript.message.dump(1)) << testing::PrintToString(pieces);
      }
    });
    if (HasFailure()) return;
  }
}

TEST(AssistantParser, ArgumentsAreAlwaysAJsonObject) {
  int malformed = 0;
  for (const AssistantCase& transcript : assistant_cases()) {
    if (transcript.name.starts_with("malformed")) ++malformed;
    // Also when the output ends anywhere.
    for (std::size_t size = 0; size <= transcript.output.size(); ++size) {
      const auto message = parse(transcript.format, transcript.output.substr(0, size));
      for (const ToolCall& call : message.tool_calls) {
        EXPECT_TRUE(ordered_json::parse(call.arguments).is_object()) << call.arguments;
      }
    }
  }
  EXPECT_GE(malformed, 12);
}

TEST(AssistantParser, HoldsBackNothingButWhatMayBeATag) {
  AssistantFormat format{.reasoning = ReasoningFormat::kNemotronV3,
                         .tool_calls = ToolCallFormat::kQwen3Coder,
                         .prompt = PromptReasoning::kOpen};
  AssistantParser parser(format);
  EXPECT_EQ(parser.push("so 1 < 2").reasoning, "so 1 < 2");
  EXPECT_EQ(parser.push(" <").reasoning, "");
  EXPECT_EQ(parser.push("/thin").reasoning, "");
  EXPECT_EQ(parser.push("g").reasoning, " </thing");
  EXPECT_TRUE(parser.in_reasoning());
  EXPECT_EQ(parser.push("\n</think>yes").content, "yes");
  EXPECT_FALSE(parser.in_reasoning());
  EXPECT_EQ(parser.push("\n\n").content, "\n\n");
  EXPECT_TRUE(parser.push("<tool_call>\n<function=f>\n<parameter=p").tool_calls.size() == 1);
  EXPECT_EQ(parser.push(">").tool_calls.at(0).arguments, "{\"p\": \"");
  EXPECT_EQ(parser.push("\nab").tool_calls.at(0).arguments, "ab");
  EXPECT_TRUE(parser.push("\n").tool_calls.empty());
  EXPECT_EQ(parser.push("c").tool_calls.at(0).arguments, "\\nc");
}

TEST(AssistantParser, FirstDeltaOfACallHasItsNameAndNoArguments) {
  AssistantParser parser({.tool_calls = ToolCallFormat::kQwen3Coder});
  const AssistantDelta delta = parser.push("<tool_call>\n<function=now>");
  ASSERT_EQ(delta.tool_calls.size(), 1u);
  EXPECT_EQ(delta.tool_calls[0].name, "now");
  EXPECT_EQ(delta.tool_calls[0].arguments, "");
  EXPECT_THAT(delta.tool_calls[0].id, testing::MatchesRegex("call_[0-9a-f]+"));
  EXPECT_EQ(delta.tool_calls[0].id.size(), 5u + 24u);
}

TEST(AssistantParser, IdsDifferBetweenCallsAndResponses) {
  std::set<std::string> ids;
  const std::string output =
      "<function=f></function><function=f></function><function=f></function>";
  for (uint64_t seed = 0; seed < 100; ++seed) {
    AssistantFormat format{.tool_calls = ToolCallFormat::kQwen3Coder};
    format.id_seed = seed * 0x9E3779B97F4A7C15u;
    for (const ToolCall& call : parse(format, output).tool_calls) ids.insert(call.id);
  }
  EXPECT_EQ(ids.size(), 300u);
}

TEST(AssistantParser, ReplacesBytesThatAreNotUtf8) {
  const std::string output =
      "a\xff"
      "b\xe2\x82</think>\xf0\x9f";
  AssistantFormat format{.reasoning = ReasoningFormat::kNemotronV3};
  for_each_split(output, [&](const std::vector<std::string_view>& pieces) {
    const AssistantMessage message = parse_pieces(format, pieces);
    EXPECT_EQ(message.reasoning, "a\uFFFDb\uFFFD");
    EXPECT_EQ(message.content, "\uFFFD");
  });
}

TEST(AssistantParser, LongValuesTakeLinearTime) {
  const std::string value(1 << 20, '\n');
  AssistantFormat format{.tool_calls = ToolCallFormat::kQwen3Coder,
                         .tools = ToolParameters(ordered_json::parse(R"([{"name": "f", "parameters":
                             {"properties": {"o": {"type": "object"}}}}])"))};
  AssistantParser parser(format);
  parser.push("<tool_call><function=f><parameter=o>");
  for (const char& byte : value) parser.push({&byte, 1});
  parser.push("{}</parameter>");
  for (const char& byte : value) parser.push({&byte, 1});
  parser.push("</function>");
  for (const char& byte : value) parser.push({&byte, 1});
  parser.finish();
  EXPECT_EQ(parser.message().tool_calls.at(0).arguments, R"({"o": {}})");
}

// What the template of the bundled model writes is read back as the call it was.
TEST(AssistantParser, ReadsBackWhatTheTemplateWrites) {
  const ChatTemplate chat_template = ChatTemplate::load(tiny_folder());
  const auto tools = ordered_json::parse(R"([{"type": "function", "function": {"name": "set",
    "parameters": {"type": "object", "properties": {
      "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"},
      "b": {"type": "boolean"}, "o": {"type": "object"}, "l": {"type": "array"},
      "z": {"type": ["string", "null"]}}}}}])");
  const auto calls = ordered_json::parse(R"([
    {"s": "Paris", "i": 7, "n": 2.5, "b": true, "o": {"a": [1, null, "x"]}, "l": ["é", {}], "z": null},
    {"b": false, "i": -12345678901234567890, "s": "two\nlines\n\n and <tags> \"quoted\" \\ \t"},
    {"s": "", "z": "text", "l": [], "o": {}},
    {"s": "\n", "unknown": "12"},
    {}])");
  for (const bool thinking : {true, false}) {
    ordered_json message = {{"role", "assistant"}, {"content", ""}};
    if (thinking) message["reasoning_content"] = "Let me\n\nsee.";
    for (const ordered_json& arguments : calls) {
      message["tool_calls"].push_back({{"function", {{"name", "set"}, {"arguments", arguments}}}});
    }
    ordered_json variables = {{"messages", {{{"role", "user"}, {"content", "go"}}}},
                              {"tools", tools},
                              {"enable_thinking", thinking},
                              {"add_generation_prompt", true}};
    const std::string prompt = chat_template.render(variables);
    variables["messages"].push_back(message);
    variables["add_generation_prompt"] = false;
    std::string output = chat_template.render(variables);
    ASSERT_TRUE(output.starts_with(prompt));
    output = output.substr(prompt.size(), output.rfind("<|im_end|>") - prompt.size());

    AssistantFormat format{.reasoning = ReasoningFormat::kNemotronV3,
                           .tool_calls = ToolCallFormat::kQwen3Coder,
                           .prompt = reasoning_of_prompt(prompt),
                           .tools = ToolParameters(tools)};
    const AssistantMessage parsed = parse(format, output);
    EXPECT_EQ(parsed.reasoning, thinking ? "Let me\n\nsee." : "");
    EXPECT_EQ(parsed.content, "");
    EXPECT_EQ(parsed.malformed, 0);
    ASSERT_EQ(parsed.tool_calls.size(), calls.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(ordered_json::parse(parsed.tool_calls[i].arguments), calls[i]);
      EXPECT_TRUE(parsed.tool_calls[i].closed);
    }
  }
}

TEST(ReasoningOfPrompt, LooksAtTheLastTurn) {
  EXPECT_EQ(reasoning_of_prompt("<|im_start|>assistant\n<think>\n"), PromptReasoning::kOpen);
  EXPECT_EQ(reasoning_of_prompt("<|im_start|>assistant\n<think></think>"),
            PromptReasoning::kClosed);
  EXPECT_EQ(reasoning_of_prompt("<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n"),
            PromptReasoning::kAbsent);
  EXPECT_EQ(reasoning_of_prompt("<|im_start|>assistant\n<think>\nso far"), PromptReasoning::kOpen);
  EXPECT_EQ(reasoning_of_prompt("once upon a time"), PromptReasoning::kAbsent);
  EXPECT_EQ(reasoning_of_prompt("a</think>"), PromptReasoning::kClosed);
}

TEST(ParserNames, AreRefusedWhenUnknown) {
  EXPECT_EQ(parse_reasoning_format("none"), ReasoningFormat::kNone);
  EXPECT_EQ(parse_tool_call_format("none"), ToolCallFormat::kNone);
  EXPECT_EQ(parse_tool_call_format("qwen3_xml"), parse_tool_call_format("qwen3_coder"));
  try {
    (void)parse_reasoning_format("deepseek_r1");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("nemotron_v3"));
    EXPECT_THAT(e.what(), testing::HasSubstr("deepseek_r1"));
  }
  try {
    (void)parse_tool_call_format("hermes");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("qwen3_coder"));
    EXPECT_THAT(e.what(), testing::HasSubstr("hermes"));
  }
}

}  // namespace
}  // namespace levin::text
