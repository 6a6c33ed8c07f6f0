// An answer depends on its request alone: not on the number of drafts, not on who else is served.
#include <future>

#include "live_server.h"

namespace levin::serve::testing {
namespace {

const char* const kPrompts[] = {
    "What is 384 + 257?",
    "Will it rain in Rome tomorrow?",
    "Name a colour.",
    "Hello",
    "Write a \"quoted\" line: äöü 日本 🙂",
    "How old is the sea?",
    "List three numbers.",
    "Is 7 a prime number?",
    "Translate \"tree\" into French.",
    "What is the capital of Norway?",
    "Compute 12 * 12.",
    "Who wrote Faust?",
    "Give me a city and a day.",
    "Count to five.",
    "Say nothing.",
    "Which is larger, 9.11 or 9.9?",
    "Describe the weather.",
    "def add(a, b):",
    "Once upon a time",
    "{\"answer\": ",
};

Json schema_format() {
  const Json schema = {{"type", "object"},
                       {"properties",
                        {{"answer", {{"type", "integer"}, {"minimum", 0}, {"maximum", 999}}},
                         {"word", {{"type", "string"}, {"maxLength", 10}}},
                         {"sure", {{"type", "boolean"}}}}},
                       {"required", Json::array({"answer", "word", "sure"})}};
  return {{"type", "json_schema"}, {"json_schema", {{"name", "a"}, {"schema", schema}}}};
}

// Every prompt with each kind of constraint, some with reasoning in front of it.
std::vector<Json> constrained_requests() {
  std::vector<Json> requests;
  for (const char* prompt : kPrompts) {
    const bool thinking = requests.size() % 8 == 6;
    const Json common = {{"max_tokens", 100},
                         {"return_token_ids", true},
                         {"chat_template_kwargs", {{"enable_thinking", thinking}}}};
    requests.push_back(chat(prompt, common));
    requests.back()["response_format"] = schema_format();
    requests.push_back(chat(prompt, common));
    requests.back()["tools"] = Json::array({weather_tool()});
    requests.back()["tool_choice"] = "required";
    requests.back()["parallel_tool_calls"] = false;
  }
  return requests;
}

// The part of an answer that the model has said.
Json said(const Json& answer) {
  Json choice = answer["choices"][0];
  for (Json& call : choice["message"]["tool_calls"]) call.erase("id");  // random
  return choice;
}

std::vector<Json> answers_with(int drafts, const std::vector<Json>& requests, double& accepted) {
  const auto engine = load_tiny();
  EngineSettings settings = test_settings();
  settings.speculation.num_speculative_tokens = drafts;
  const LiveServer server(*engine, test_options(), settings);
  std::vector<Json> answers;
  for (const Json& request : requests) {
    const Answer answer = server.post("/v1/chat/completions", request);
    EXPECT_EQ(answer.status, 200) << answer.body;
    answers.push_back(said(answer.json()));
  }
  accepted = server.metric("spec_decode_num_accepted_tokens_total");
  return answers;
}

TEST(Equality, DraftsChangeNothingUnderAGrammar) {
  const std::vector<Json> requests = constrained_requests();
  double accepted = 0;
  const auto without = answers_with(0, requests, accepted);
  EXPECT_EQ(accepted, 0);
  const auto with = answers_with(3, requests, accepted);
  EXPECT_GT(accepted, 0);
  int ended = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(with[i], without[i]) << requests[i].dump();
    ended += with[i]["finish_reason"] == "length" ? 0 : 1;
  }
  RecordProperty("ended_by_the_grammar", ended);
  EXPECT_GE(ended, 20);  // with all that a grammar has to say
}

TEST(Equality, SeededSamplesDoNotDependOnNeighbours) {
  std::vector<Json> requests;
  for (std::size_t i = 0; i < std::size(kPrompts); ++i) {
    Json request = chat(kPrompts[i], {{"temperature", 1.0},
                                      {"top_p", 0.95},
                                      {"seed", 100 + i},
                                      {"max_tokens", 40},
                                      {"return_token_ids", true}});
    if (i % 3 == 1) request["response_format"] = schema_format();
    if (i % 4 == 2) request["frequency_penalty"] = 0.5;
    if (i % 5 == 3) request["n"] = 2;
    requests.push_back(request);
  }
  const auto engine = load_tiny();
  const LiveServer server(*engine);
  const auto ask = [&](const Json& request) {
    Json choices = server.post("/v1/chat/completions", request).json()["choices"];
    for (Json& choice : choices) choice.erase("timings");
    return choices;
  };
  std::vector<Json> alone;
  for (const Json& request : requests) alone.push_back(ask(request));
  for (int round = 0; round < 2; ++round) {
    std::vector<std::future<Json>> together;
    for (const Json& request : requests) {
      together.push_back(std::async(std::launch::async, ask, request));
    }
    for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(together[i].get(), alone[i]) << i;
  }
}

}  // namespace
}  // namespace levin::serve::testing
