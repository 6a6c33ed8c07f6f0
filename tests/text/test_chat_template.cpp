#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "core/files.h"
#include "support/tiny_checkpoint.h"
#include "text/chat_template.h"
#include "text/conversation.h"

namespace levin::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;

class ChatTemplateFolder : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = fs::path(testing::TempDir()) / ("chat_template_" + name);
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    write_text(folder_ / name, text);
  }
  std::string render(const ordered_json& variables = ordered_json::object()) const {
    return ChatTemplate::load(folder_).render(variables);
  }
  Error error() const {
    try {
      (void)ChatTemplate::load(folder_);
    } catch (const Error& e) {
      return e;
    }
    return Error({.what = "no error", .where = {}, .expected = {}, .found = {}, .hint = {}});
  }

  fs::path folder_;
};

TEST_F(ChatTemplateFolder, PrefersTheFileToTheConfiguration) {
  write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(render(), "config");
  write("chat_template.jinja", "file\n");
  EXPECT_EQ(render(), "file");
}

TEST_F(ChatTemplateFolder, TakesTheDefaultOfAList) {
  write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "x"}]})");
  EXPECT_EQ(render(), "x");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "x"},
                              {"name": "tool_use", "template": "y"}]})");
  EXPECT_EQ(error().parts().what, "chat template is not usable");
  EXPECT_EQ(error().parts().found, "several templates");
}

TEST_F(ChatTemplateFolder, MakesSpecialTokensVariables) {
  write("tokenizer_config.json",
        R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null})");
  write("chat_template.jinja", "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}");
  EXPECT_EQ(render(), "<s></s>False");
  EXPECT_EQ(render({{"bos_token", "<b>"}}), "<b></s>False");
  const ChatTemplate other = ChatTemplate::parse("{{ bos_token }}", "other", folder_);
  EXPECT_EQ(other.render(ordered_json::object()), "<s>");
  EXPECT_EQ(ChatTemplate::parse("{{ bos_token }}", "other").render(ordered_json::object()), "");
}

TEST_F(ChatTemplateFolder, HasTheDefaultsOfTransformers) {
  write("chat_template.jinja",
        "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}"
        "{{ messages is defined }}");
  EXPECT_EQ(render(), "TrueTrueFalseFalse");
  EXPECT_EQ(render({{"tools", 1}, {"add_generation_prompt", true}}), "FalseTrueTrueFalse");
}

TEST_F(ChatTemplateFolder, RefusesWhatIsNoTemplate) {
  EXPECT_EQ(error().parts().what, "the folder has no chat template");
  write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_EQ(error().parts().what, "chat template is not usable");
  write("tokenizer_config.json", R"(["chat_template"])");
  EXPECT_EQ(error().parts().what, "not a JSON object");
  write("tokenizer_config.json", R"({"chat_template": "a\n{% if %}"})");
  EXPECT_EQ(error().parts().where,
            (folder_ / "tokenizer_config.json").string() + ": chat_template:2");
  write("chat_template.jinja", "caf\xE9");
  EXPECT_EQ(error().parts().what, "chat template is not UTF-8");
  write("chat_template.jinja", std::string((4 << 20) + 1, 'x'));
  EXPECT_EQ(error().parts().what, "file is too large");
}

TEST(ChatTemplate, KeepsTheOrderOfKeys) {
  const auto variables = ordered_json::parse(R"({"x": {"z": 1, "a": {"y": 2, "b": 3}}})");
  EXPECT_EQ(ChatTemplate::parse("{{ x }}|{{ x|tojson }}", "t").render(variables),
            R"({'z': 1, 'a': {'y': 2, 'b': 3}}|{"z": 1, "a": {"y": 2, "b": 3}})");
}

TEST(ChatTemplate, IsEndedByItsInterrupt) {
  const auto endless =
      ChatTemplate::parse("{% for i in range(90000) %}{{ i + 1 }}{% endfor %}", "t");
  int calls = 0;
  const auto third = [&] {
    if (++calls == 3) throw calls;
  };
  EXPECT_THROW(static_cast<void>(endless.render(ordered_json::object(), third)), int);
  EXPECT_EQ(calls, 3);
}

TEST(ChatTemplate, TellsKindsOfNumbersApart) {
  const auto variables = ordered_json::parse(
      R"({"x": [1, 1.0, -0.0, 1e2, 1e20, true, null, 9223372036854775807, -9223372036854775808]})");
  EXPECT_EQ(ChatTemplate::parse("{{ x }}", "t").render(variables),
            "[1, 1.0, -0.0, 100.0, 1e+20, True, None, 9223372036854775807, -9223372036854775808]");
}

TEST(ChatTemplate, RefusesVariablesItCannotHold) {
  const ChatTemplate chat = ChatTemplate::parse("x", "t");
  EXPECT_THROW((void)chat.render(ordered_json::array()), Error);
  EXPECT_THROW((void)chat.render({{"x", "\xFF"}}), Error);
  EXPECT_THROW((void)chat.render({{"\xFF", 1}}), Error);
  EXPECT_THROW((void)chat.render({{"x", UINT64_MAX}}), Error);
}

TEST(Conversation, TakesAnArrayOrAnObject) {
  EXPECT_EQ(parse_conversation(R"([{"role": "user", "content": "x", "b": [1]}])", "t").dump(),
            R"({"messages":[{"role":"user","content":"x","b":[1]}]})");
  EXPECT_EQ(
      parse_conversation(
          R"({"tools": [], "messages": [{"role": "assistant", "content": null}], "a": 1})", "t")
          .dump(),
      R"({"tools":[],"messages":[{"role":"assistant","content":null}],"a":1})");
  EXPECT_EQ(parse_tools(R"([{"b": 1, "a": 2}])", "t").dump(), R"([{"b":1,"a":2}])");
}

TEST(Conversation, RefusesAnythingElse) {
  for (const char* text :
       {"", "1", "{}", "null", "[1]", R"({"messages": {}})", R"({"messages": ["x"]})",
        R"([{"a": 1, "a": 2}])", R"([{"a": NaN}])", "[{}] x", "[{\"a\": \"\xFF\"}]"}) {
    EXPECT_THROW((void)parse_conversation(text, "t"), Error) << text;
  }
  EXPECT_THROW((void)parse_conversation(std::string(100'000, '['), "t"), Error);
  EXPECT_THROW((void)parse_tools("{}", "t"), Error);
  EXPECT_THROW((void)parse_tools("[1]", "t"), Error);
}

// The message of the Error for a file m.json with these messages.
std::string refusal(const std::string& messages) {
  return test::error_of([&] { (void)parse_conversation(messages, "m.json"); }).what();
}

TEST(Conversation, RefusesPartsThatAreNotText) {
  for (const char* type : {"image_url", "input_audio", "video_url", "file"}) {
    EXPECT_THAT(
        refusal(fmt::format(R"([{{"role": "user", "content": "a"}}, {{"role": "user", "content": )"
                            R"([{{"type": "text", "text": "b"}}, {{"type": "{}"}}]}}])",
                            type)),
        AllOf(HasSubstr("not text"), HasSubstr("m.json, messages[1].content[1]"), HasSubstr(type)));
  }
  EXPECT_THAT(refusal(R"([{"role": "user", "content": [1]}])"),
              HasSubstr("m.json, messages[0].content[0]"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": [{"type": "text"}]}])"),
              HasSubstr("messages[0].content[0].text"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": 7}])"), HasSubstr("messages[0].content"));
}

TEST(Conversation, RefusesMessagesThatAreNone) {
  EXPECT_THAT(refusal("[]"), AllOf(HasSubstr("there are no messages"), HasSubstr("m.json")));
  EXPECT_THAT(refusal(R"({"messages": []})"), HasSubstr("there are no messages"));
  EXPECT_THAT(refusal(R"([{"content": "x"}])"),
              AllOf(HasSubstr("no role"), HasSubstr("m.json, messages[0]")));
  for (const char* role : {R"("human")", "7", R"(["user"])"}) {
    EXPECT_THAT(refusal(fmt::format(R"([{{"role": {}, "content": "x"}}])", role)),
                AllOf(HasSubstr("unknown role"), HasSubstr("assistant")));
  }
  EXPECT_THAT(refusal(R"([{"role": "user"}])"), HasSubstr("no content"));
  for (const char* key : {"name", "tool_call_id", "reasoning", "reasoning_content"}) {
    EXPECT_THAT(refusal(fmt::format(R"([{{"role": "assistant", "content": "x", "{}": 1}}])", key)),
                AllOf(HasSubstr(key), HasSubstr("messages[0]")));
  }
  EXPECT_THAT(refusal(R"([{"role": "assistant", "tool_calls": {}}])"), HasSubstr("tool_calls"));
  EXPECT_THAT(refusal(R"([{"role": "assistant", "tool_calls": [{"function": {}}]}])"),
              HasSubstr("messages[0].tool_calls[0]"));
  EXPECT_THAT(refusal(R"([{"role": "assistant", "tool_calls": [{"function":
                           {"name": "f", "arguments": "["}}]}])"),
              HasSubstr("messages[0].tool_calls[0].arguments"));
  EXPECT_THAT(refusal(R"([{"role": "assistant", "audio": {"id": "1"}}])"), HasSubstr("audio"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": ""}], "tools": 3})"),
              HasSubstr("tools"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": ""}], "enable_thinking": 1})"),
              HasSubstr("enable_thinking"));
}

TEST(Conversation, IsBroughtIntoTheFormOfTemplates) {
  const auto messages = parse_conversation(
      R"([{"role": "developer", "content": [{"type": "text", "text": "a"}, "b"]},
          {"role": "assistant", "reasoning": "r",
           "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 1}"}}]}])",
      "t")["messages"];
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[0]["content"], "a\nb");
  EXPECT_EQ(messages[1]["reasoning_content"], "r");
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["arguments"]["x"], 1);
}

}  // namespace
}  // namespace levin::text
