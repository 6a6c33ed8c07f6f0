// The server as clients see it, with the bundled model.
#include <set>

#include "live_server.h"
#include "text/utf8.h"

namespace levin::serve::testing {
namespace {

LiveServer& shared() {
  static const auto engine = load_tiny();
  static LiveServer server(*engine);
  return server;
}

// Deltas of a streamed chat, put together.
struct Streamed {
  std::string content, reasoning, finish_reason;
  Json calls = Json::array();
  Json usage;
  std::set<std::string> ids;
  bool role_first = false;
  bool done = false;
};

Streamed collect(const Answer& answer) {
  Streamed all;
  bool first = true;
  for (const std::string& data : answer.events()) {
    EXPECT_FALSE(all.done) << "an event behind [DONE]";
    if (data == "[DONE]") {
      all.done = true;
      continue;
    }
    const Json chunk = Json::parse(data);
    all.ids.insert(chunk["id"]);
    if (chunk.contains("usage") && !chunk["usage"].is_null()) all.usage = chunk["usage"];
    for (const Json& choice : chunk["choices"]) {
      const Json& delta = choice["delta"];
      if (first) all.role_first = delta.value("role", "") == "assistant";
      first = false;
      all.content += delta.value("content", "");
      all.reasoning += delta.value("reasoning", "");
      EXPECT_EQ(delta.value("reasoning", ""), delta.value("reasoning_content", ""));
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        if (call.contains("id")) all.calls.push_back(call["function"]["name"]);
      }
      if (!choice["finish_reason"].is_null()) {
        EXPECT_TRUE(all.finish_reason.empty()) << "two finish reasons";
        all.finish_reason = choice["finish_reason"];
      }
    }
  }
  return all;
}

TEST(Server, AnswersEveryRoute) {
  const LiveServer& server = shared();
  EXPECT_EQ(server.get("/health").json()["status"], "ok");
  EXPECT_EQ(server.get("/ping").status, 200);
  EXPECT_EQ(server.get("/version").json()["version"], "test");
  EXPECT_NE(server.get("/").body.find("<html"), std::string::npos);
  EXPECT_EQ(server.get("/v1/models").json()["data"][0]["id"], "tiny");
  EXPECT_EQ(server.get("/v1/models/another-name").json()["max_model_len"], 512);
  EXPECT_EQ(server.get("/v1/models/none").status, 404);

  const Json tokens = server.post("/tokenize", {{"prompt", "Hi there"}}).json();
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(server.post("/detokenize", {{"tokens", tokens["tokens"]}}).json()["prompt"],
            "Hi there");
  const Json rendered = server.post("/apply-template", chat("Hi")).json();
  EXPECT_NE(rendered["prompt"].get<std::string>().find("<|im_start|>user\nHi<|im_end|>"),
            std::string::npos);
  const Json counted = server.post("/v1/chat/completions/input_tokens", chat("Hi")).json();
  const Json rendered_tokens = server.post("/tokenize", {{"prompt", rendered["prompt"]}}).json();
  EXPECT_EQ(counted["input_tokens"], rendered_tokens["count"]);
  const Json messages = {{"max_tokens", 8},
                         {"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})}};
  EXPECT_EQ(server.post("/v1/messages/count_tokens", messages).json()["input_tokens"],
            counted["input_tokens"]);
}

TEST(Server, StreamedTextIsTheWholeText) {
  const LiveServer& server = shared();
  for (const char* question :
       {"What is 384 + 257?", "Write a \"quoted\" line: äöü 日本 🙂", "Hello"}) {
    for (const bool thinking : {true, false}) {
      Json body = chat(question, {{"chat_template_kwargs", {{"enable_thinking", thinking}}}});
      const Json whole = server.post("/v1/chat/completions", body).json();
      body["stream"] = true;
      body["stream_options"] = {{"include_usage", true}};
      const Answer answer = server.post("/v1/chat/completions", body);
      ASSERT_EQ(answer.status, 200) << answer.body;
      EXPECT_TRUE(answer.whole);
      const Streamed streamed = collect(answer);
      const Json& message = whole["choices"][0]["message"];
      EXPECT_EQ(streamed.content, message["content"].is_null() ? "" : message["content"]);
      EXPECT_EQ(streamed.reasoning, message["reasoning"].is_null() ? "" : message["reasoning"]);
      EXPECT_EQ(streamed.finish_reason, whole["choices"][0]["finish_reason"]);
      EXPECT_EQ(streamed.usage["completion_tokens"], whole["usage"]["completion_tokens"]);
      EXPECT_EQ(streamed.ids.size(), 1u);
      EXPECT_TRUE(streamed.role_first);
      EXPECT_TRUE(streamed.done);
      EXPECT_FALSE(text::find_invalid_utf8(answer.body));
    }
  }
}

TEST(Server, CompletionsTakeTextsAndTokensAndManyChoices) {
  const LiveServer& server = shared();
  const Json ids = server.post("/tokenize", {{"prompt", "It was the best"}}).json()["tokens"];
  Json body = {{"prompt", ids}, {"max_tokens", 8}, {"temperature", 0}};
  const Json by_ids = server.post("/v1/completions", body).json();
  body["prompt"] = Json::array({"It was the best", "Once"});
  body["n"] = 2;
  body["echo"] = true;
  const Json both = server.post("/v1/completions", body).json();
  ASSERT_EQ(both["choices"].size(), 4u);
  EXPECT_EQ(both["choices"][1]["text"],
            "It was the best" + by_ids["choices"][0]["text"].get<std::string>());
  EXPECT_EQ(both["choices"][3]["index"], 3);
  EXPECT_EQ(both["choices"][2]["text"].get<std::string>().substr(0, 4), "Once");
}

TEST(Server, TheSamePromptAgainIsCached) {
  const LiveServer& server = shared();
  const Json body = chat("Tell me about caching of prefixes, please: a rather long question here.");
  const Json first = server.post("/v1/chat/completions", body).json();
  const Json second = server.post("/v1/chat/completions", body).json();
  EXPECT_EQ(first["choices"][0]["message"], second["choices"][0]["message"]);
  EXPECT_EQ(second["usage"]["prompt_tokens_details"]["cached_tokens"],
            second["usage"]["prompt_tokens"].get<int>() - 1);
  EXPECT_EQ(second["timings"]["cached_tokens"],
            second["usage"]["prompt_tokens_details"]["cached_tokens"]);
}

TEST(Server, LogprobsAreThoseOfTheModelAndGoWithTheTokens) {
  const LiveServer& server = shared();
  Json body = chat("Hello", {{"logprobs", true}, {"top_logprobs", 3}, {"max_tokens", 6}});
  const Json whole = server.post("/v1/chat/completions", body).json();
  const Json& content = whole["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), whole["usage"]["completion_tokens"].get<std::size_t>());
  for (const Json& token : content) {
    EXPECT_LE(token["logprob"].get<double>(), 0);
    ASSERT_EQ(token["top_logprobs"].size(), 3u);
    EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);  // greedy
    EXPECT_GE(token["top_logprobs"][0]["logprob"], token["top_logprobs"][1]["logprob"]);
  }
  body["stream"] = true;
  Json streamed = Json::array();
  for (const std::string& data : server.post("/v1/chat/completions", body).events()) {
    if (data == "[DONE]") continue;
    const Json chunk = Json::parse(data);
    const Json& logprobs = chunk["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const Json& token : logprobs["content"]) streamed.push_back(token);
  }
  EXPECT_EQ(streamed, content);
}

TEST(Server, ConstrainedOutputValidatesWithReasoningAndSpeculation) {
  const LiveServer& server = shared();
  const Json schema = {{"type", "object"},
                       {"properties",
                        {{"answer", {{"type", "integer"}, {"minimum", 0}, {"maximum", 999}}},
                         {"sure", {{"type", "boolean"}}}}},
                       {"required", Json::array({"answer", "sure"})},
                       {"additionalProperties", false}};
  const Json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "a"}, {"schema", schema}}}};
  for (int seed = 0; seed < 8; ++seed) {
    for (const bool thinking : {false, true}) {
      const Json body =
          chat("What is 384 + 257?", {{"response_format", format},
                                      {"temperature", 1.2},
                                      {"seed", seed},
                                      {"max_tokens", 300},
                                      {"chat_template_kwargs", {{"enable_thinking", thinking}}}});
      const Json whole = server.post("/v1/chat/completions", body).json();
      const Json& choice = whole["choices"][0];
      if (thinking && choice["finish_reason"] == "length") continue;  // it thought too long
      ASSERT_EQ(choice["finish_reason"], "stop") << whole.dump();
      const Json value = Json::parse(choice["message"]["content"].get<std::string>());
      EXPECT_TRUE(value["answer"].is_number_integer() && value["sure"].is_boolean()) << value;
      EXPECT_EQ(value.size(), 2u);
      EXPECT_EQ(choice["message"]["reasoning"].is_null(), !thinking);
    }
  }
}

TEST(Server, ForcedToolCallsFollowTheirSchema) {
  const LiveServer& server = shared();
  for (const Json& choice :
       {Json("required"), Json({{"type", "function"}, {"function", {{"name", "get_weather"}}}})}) {
    Json body =
        chat("Will it rain in Rome?", {{"tools", Json::array({weather_tool()})},
                                       {"tool_choice", choice},
                                       {"parallel_tool_calls", false},
                                       {"max_tokens", 200},
                                       {"chat_template_kwargs", {{"enable_thinking", false}}}});
    const Json whole = server.post("/v1/chat/completions", body).json();
    const Json& calls = whole["choices"][0]["message"]["tool_calls"];
    ASSERT_EQ(calls.size(), 1u) << whole.dump();
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "tool_calls");
    const Json arguments = Json::parse(calls[0]["function"]["arguments"].get<std::string>());
    EXPECT_TRUE(arguments["city"].is_string());
    EXPECT_TRUE(arguments["days"] >= 1 && arguments["days"] <= 9) << arguments;
    // The call and its result go back with the next turn.
    Json next = body;
    next["tool_choice"] = "auto";
    next["max_tokens"] = 4;
    next["messages"].push_back(whole["choices"][0]["message"]);
    next["messages"].push_back(
        {{"role", "tool"}, {"tool_call_id", calls[0]["id"]}, {"content", "no"}});
    const Json prompt = server.post("/apply-template", next).json();
    EXPECT_NE(prompt["prompt"].get<std::string>().find("<function=get_weather>"), std::string::npos)
        << prompt;
    EXPECT_EQ(server.post("/v1/chat/completions", next).status, 200);
    body["stream"] = true;
    const Streamed streamed = collect(server.post("/v1/chat/completions", body));
    EXPECT_EQ(streamed.calls, Json::array({"get_weather"}));
    EXPECT_EQ(streamed.finish_reason, "tool_calls");
  }
}

TEST(Server, StopStringsEndTheTextBeforeThem) {
  const LiveServer& server = shared();
  Json body = {
      {"prompt", "It was the best of times, it was"}, {"max_tokens", 24}, {"temperature", 0}};
  const std::string free = server.post("/v1/completions", body).json()["choices"][0]["text"];
  ASSERT_GT(free.size(), 8u);
  const std::string stop = free.substr(4, 3);
  body["stop"] = Json::array({stop});
  const Json whole = server.post("/v1/completions", body).json();
  EXPECT_EQ(whole["choices"][0]["text"], free.substr(0, free.find(stop)));
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(whole["choices"][0]["stop_reason"], stop);
}

TEST(Server, ResponsesAndMessagesStreamWhatTheyGiveWhole) {
  const LiveServer& server = shared();
  Json body = {{"input", "What is 384 + 257?"}, {"temperature", 0}, {"max_output_tokens", 60}};
  const Json response = server.post("/v1/responses", body).json();
  ASSERT_EQ(response["object"], "response") << response.dump();
  body["stream"] = true;
  Json last;
  int64_t sequence = 0;
  for (const std::string& data : server.post("/v1/responses", body).events()) {
    last = Json::parse(data);
    EXPECT_EQ(last["sequence_number"], sequence++);
  }
  ASSERT_EQ(last["response"]["output"].size(), response["output"].size());
  for (std::size_t i = 0; i < response["output"].size(); ++i) {
    EXPECT_EQ(last["response"]["output"][i]["content"], response["output"][i]["content"]);
  }
  EXPECT_EQ(last["response"]["usage"]["output_tokens"], response["usage"]["output_tokens"]);

  Json request = {
      {"max_tokens", 60},
      {"temperature", 0},
      {"messages", Json::array({{{"role", "user"}, {"content", "What is 384 + 257?"}}})}};
  const Json message = server.post("/v1/messages", request).json();
  ASSERT_EQ(message["type"], "message") << message.dump();
  request["stream"] = true;
  std::string text;
  std::string thinking;
  std::string reason;
  for (const std::string& data : server.post("/v1/messages", request).events()) {
    const Json event = Json::parse(data);
    if (event["type"] == "content_block_delta") {
      text += event["delta"].value("text", "");
      thinking += event["delta"].value("thinking", "");
    }
    if (event["type"] == "message_delta") reason = event["delta"]["stop_reason"];
  }
  std::string whole_text;
  std::string whole_thinking;
  for (const Json& block : message["content"]) {
    whole_text += block.value("text", "");
    whole_thinking += block.value("thinking", "");
  }
  EXPECT_EQ(text, whole_text);
  EXPECT_EQ(thinking, whole_thinking);
  EXPECT_EQ(reason, message["stop_reason"]);
}

TEST(Server, UnknownFieldsAreReportedAndKnownOnesRefusedByName) {
  const LiveServer& server = shared();
  const Answer odd = server.post("/v1/chat/completions", chat("Hi", {{"tempreature", 1}}));
  EXPECT_EQ(odd.status, 200);
  EXPECT_EQ(odd.header("X-Levin-Unknown-Fields"), "tempreature");
  const Answer refused =
      server.post("/v1/chat/completions", chat("Hi", {{"functions", Json::array({1})}}));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "functions");
  EXPECT_EQ(refused.json()["error"]["code"], 400);
  EXPECT_EQ(refused.json()["error"]["type"], "BadRequestError");
}

TEST(Server, MetricsHaveVllmsNames) {
  const LiveServer& server = shared();
  server.post("/v1/chat/completions", chat("Hi"));
  const std::string text = server.get("/metrics").body;
  for (const char* name :
       {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
        "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total",
        "prompt_tokens_total", "generation_tokens_total", "request_success_total",
        "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket",
        "request_time_per_output_token_seconds_count", "e2e_request_latency_seconds_sum",
        "request_queue_time_seconds_bucket", "spec_decode_num_drafts_total",
        "spec_decode_num_accepted_tokens_per_pos_total"}) {
    EXPECT_NE(text.find(std::string("\nlevin:") + name), std::string::npos) << name;
  }
  EXPECT_NE(text.find("le=\"0.0001\""), std::string::npos);
  EXPECT_GT(server.metric("spec_decode_num_draft_tokens_total"), 0);
}

}  // namespace
}  // namespace levin::serve::testing
