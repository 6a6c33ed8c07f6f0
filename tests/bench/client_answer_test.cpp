#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/client/answer.h"

namespace levin::bench::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Events that arrive a second apart, the first at 1.
RequestRecord read(const std::vector<std::string>& events, int64_t asked = 0) {
  RequestRecord record;
  record.asked = asked;
  AnswerReader reader(record);
  double now = 0;
  for (const std::string& event : events) reader.on_event(event, ++now);
  reader.on_end();
  return record;
}

constexpr const char* kRole = R"({"choices": [{"delta": {"role": "assistant", "content": ""}}]})";
constexpr const char* kStop = R"({"choices": [{"delta": {}, "finish_reason": "stop"}]})";
constexpr const char* kUsage =
    R"({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 2}}})";

TEST(Answer, ChatCountsFromTheFirstTextNotFromTheRole) {
  const RequestRecord record =
      read({kRole, R"({"choices": [{"delta": {"content": "a"}}]})",
            R"({"choices": [{"delta": {"reasoning": "b"}}]})",
            R"({"choices": [{"delta": {"reasoning_content": "b"}}]})",
            R"({"choices": [{"delta": {"tool_calls": [{}]}}]})", kStop, kUsage, "[DONE]"});
  EXPECT_EQ(record.error, "");
  EXPECT_THAT(record.outputs, ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(record.ttft(), 2);
  EXPECT_EQ(record.e2e(), 6);
  EXPECT_EQ(record.tpot(), 3.0 / 4);  // five tokens in four chunks
  EXPECT_THAT(record.itl(), ElementsAre(1, 1, 1));
  EXPECT_EQ(record.finish_reason, "stop");
  ASSERT_TRUE(record.usage.has_value());
  EXPECT_EQ(record.usage->prompt, 7);
  EXPECT_EQ(record.usage->cached, 2);
}

TEST(Answer, MorePiecesThanTokensCanHaveAreAFailure) {
  std::vector<std::string> events(1100, R"({"choices": [{"text": "a"}]})");
  EXPECT_EQ(read(events, 100).error, "the stream ended without [DONE]");
  EXPECT_THAT(read(events, 4).error, HasSubstr("does not end"));
}

TEST(Answer, CompletionsHaveTextAndContinuousUsageIsOverwritten) {
  const RequestRecord record = read(
      {R"({"choices": [{"text": "a"}], "usage": {"prompt_tokens": 7, "completion_tokens": 1}})",
       R"({"choices": [{"text": "", "finish_reason": "length"}], "usage": null})",
       R"({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})", "[DONE]"});
  EXPECT_TRUE(record.ok());
  EXPECT_THAT(record.outputs, ElementsAre(1));
  EXPECT_EQ(record.tpot(), std::nullopt);  // one chunk
  EXPECT_EQ(record.usage->output, 2);
  EXPECT_EQ(record.usage->cached, std::nullopt);
}

// Whoever believes such counts prints billions of tokens a second.
TEST(Answer, CountsThatCannotBeAreFailures) {
  const std::string text = R"({"choices": [{"text": "a", "finish_reason": "length"}]})";
  EXPECT_EQ(read({text, kUsage, "[DONE]"}, 5).error, "");
  EXPECT_THAT(read({text, kUsage, "[DONE]"}, 4).error, HasSubstr("5 output tokens, 4 were asked"));
  const std::string cached =
      R"({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1,
                                 "prompt_tokens_details": {"cached_tokens": 8}}})";
  EXPECT_THAT(read({text, cached, "[DONE]"}).error, HasSubstr("8 cached tokens of 7"));
}

TEST(Answer, WithoutUsageThereAreNoTokens) {
  const RequestRecord record =
      read({R"({"choices": [{"text": "a"}]})",
            R"({"choices": [{"text": "b", "finish_reason": "stop"}]})", "[DONE]"});
  EXPECT_TRUE(record.ok());
  EXPECT_EQ(record.usage, std::nullopt);
  EXPECT_EQ(record.tpot(), std::nullopt);
  EXPECT_EQ(record.ttft(), 1);
}

TEST(Answer, WhatIsWrongIsNamed) {
  EXPECT_THAT(read({kRole, kStop}).error, HasSubstr("[DONE]"));
  EXPECT_THAT(read({kRole, "[DONE]"}).error, HasSubstr("finish_reason"));
  EXPECT_THAT(read({"{\"choices\": [", "[DONE]"}).error,
              HasSubstr("broken event: {\"choices\": ["));
  EXPECT_THAT(read({"7", "[DONE]"}).error, HasSubstr("broken event"));
  EXPECT_THAT(read({R"({"choices": [7]})", "[DONE]"}).error, HasSubstr("broken event"));
  EXPECT_THAT(read({R"({"error": {"message": "out of slots"}})", kStop, "[DONE]"}).error,
              HasSubstr("out of slots"));
}

TEST(Answer, OddUsageIsNone) {
  for (const char* usage :
       {R"({"prompt_tokens": 7})", R"({"prompt_tokens": -1, "completion_tokens": 1})",
        R"({"prompt_tokens": "7", "completion_tokens": 1})", "[]", "7"}) {
    const RequestRecord record =
        read({kStop, R"({"choices": [], "usage": )" + std::string(usage) + "}", "[DONE]"});
    EXPECT_TRUE(record.ok());
    EXPECT_EQ(record.usage, std::nullopt) << usage;
  }
}

TEST(ErrorMessage, OfEveryForm) {
  EXPECT_EQ(error_message(R"({"error": {"message": "a"}})"), "a");
  EXPECT_EQ(error_message(R"({"error": "a"})"), "a");
  EXPECT_EQ(error_message(R"({"message": "a"})"), "a");
  EXPECT_EQ(error_message("<h1>\nBad\x1b"), "<h1> Bad\\x1b");
  EXPECT_EQ(error_message(std::string(1000, 'x')).size(), 200u);
  EXPECT_EQ(error_message(""), "");
}

TEST(Record, JsonHasAllTimes) {
  RequestRecord record =
      read({kRole, R"({"choices": [{"delta": {"content": "a"}}]})", kStop, kUsage, "[DONE]"});
  record.status = 200;
  const nlohmann::ordered_json json = to_json(record);
  EXPECT_EQ(json["outputs"], nlohmann::ordered_json({2.0}));
  EXPECT_EQ(json["usage"]["cached_tokens"], 2);
  EXPECT_TRUE(json["error"].is_null());
}

}  // namespace
}  // namespace levin::bench::client
