// Requests as the four APIs read them, and errors as they say them, without a server: the cases are
// data (api_cases.json).
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "serve/api/api_error.h"
#include "serve/api/fields.h"
#include "serve/api/generation_request.h"

namespace levin::serve::api {
namespace {

using Json = nlohmann::ordered_json;

// The defaults of a model, so that it shows which fields replace them.
ModelFacts facts() {
  return {
      .default_sampling = {.temperature = 0.6, .top_p = 0.95}, .vocab_size = 100, .max_choices = 4};
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json summary(const GenerationRequest& request) {
  static const char* const kModes[] = {"none", "auto", "required", "named"};
  static const char* const kShapes[] = {"text", "json_object", "json_schema"};
  const engine::SamplingParams& sampling = request.sampling;
  Json json = {{"model", request.model},
               {"request_id", request.request_id},
               {"variables", request.variables ? *request.variables : Json()},
               {"tools", request.tools ? *request.tools : Json()},
               {"tool_mode", kModes[static_cast<int>(request.tool_mode)]},
               {"tool_name", request.tool_name},
               {"parallel_tool_calls", request.parallel_tool_calls},
               {"shape", kShapes[static_cast<int>(request.shape)]},
               {"schema", request.schema ? *request.schema : Json()},
               {"enable_thinking", or_null(request.enable_thinking)},
               {"force_nonempty_content", request.force_nonempty_content},
               {"include_reasoning", request.include_reasoning},
               {"prompts", Json::array()},
               {"echo", request.echo},
               {"max_tokens", or_null(request.max_tokens)},
               {"allowed_token_ids", request.allowed_token_ids},
               {"truncate_prompt_tokens", or_null(request.truncate_prompt_tokens)},
               {"n", request.n},
               {"priority", request.priority},
               {"stream", request.stream},
               {"include_usage", request.include_usage},
               {"continuous_usage", request.continuous_usage},
               {"return_token_ids", request.return_token_ids},
               {"unknown", request.unknown_fields}};
  for (const auto& prompt : request.prompts) {
    std::visit([&](const auto& value) { json["prompts"].push_back(value); }, prompt);
  }
  json["sampling"] = {{"temperature", sampling.temperature},
                      {"top_k", sampling.top_k},
                      {"top_p", sampling.top_p},
                      {"min_p", sampling.min_p},
                      {"presence_penalty", sampling.presence_penalty},
                      {"frequency_penalty", sampling.frequency_penalty},
                      {"repetition_penalty", sampling.repetition_penalty},
                      {"seed", or_null(sampling.seed)},
                      {"min_tokens", sampling.min_tokens},
                      {"ignore_eos", sampling.ignore_eos},
                      {"stop", sampling.stop},
                      {"stop_token_ids", sampling.stop_token_ids},
                      {"include_stop_str_in_output", sampling.include_stop_str_in_output},
                      {"skip_special_tokens", sampling.skip_special_tokens},
                      {"logit_bias", sampling.logit_bias},
                      {"logprobs", or_null(sampling.logprobs)}};
  return json;
}

Json cases() {
  const auto path = std::filesystem::path(LEVIN_SOURCE_DIR) / "tests/serve/api_cases.json";
  return parse_ordered_json(read_text(path), path.string());
}

TEST(Api, ReadsRequestsAndRefusesThemByField) {
  const std::map<std::string, GenerationRequest (*)(std::string_view, const ModelFacts&)> parsers =
      {{"chat", parse_chat},
       {"completion", parse_completion},
       {"responses", parse_responses},
       {"messages", parse_messages}};
  const Json data = cases();
  EXPECT_GT(data.size(), 60U);
  for (const Json& each : data) {
    SCOPED_TRACE(each.dump());
    Json body = each["api"] == "chat" || each["api"] == "messages"
                    ? Json{{"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})}}
                    : Json{{each["api"] == "completion" ? "prompt" : "input", "Hi"}};
    body.update(each["body"]);
    for (auto place = body.begin(); place != body.end();) {  // "(absent)" takes a field away
      place = *place == "(absent)" ? body.erase(place) : std::next(place);
    }
    try {
      const Json found = summary(parsers.at(each["api"])(body.dump(), facts()));
      ASSERT_TRUE(each.contains("expect")) << "it was accepted";
      for (const auto& [pointer, value] : each["expect"].items()) {
        const Json::json_pointer place(pointer);
        ASSERT_TRUE(found.contains(place)) << pointer;
        EXPECT_EQ(found[place], value) << pointer;
      }
    } catch (const ApiError& error) {
      ASSERT_TRUE(each.contains("refused")) << error.message();
      EXPECT_EQ(error.status(), 400);
      EXPECT_EQ(error.param(), each["refused"]) << error.message();
      EXPECT_NE(error.message().find(each.value("message", "")), std::string::npos)
          << error.message();
    }
  }
}

TEST(Api, ErrorsAreInTheEnvelopeOfTheirApi) {
  const std::map<int, std::pair<std::string, std::string>> kinds = {
      {400, {"BadRequestError", "invalid_request_error"}},
      {401, {"AuthenticationError", "authentication_error"}},
      {404, {"NotFoundError", "not_found_error"}},
      {405, {"MethodNotAllowedError", "invalid_request_error"}},
      {413, {"RequestEntityTooLargeError", "request_too_large"}},
      {415, {"UnsupportedMediaTypeError", "invalid_request_error"}},
      {429, {"RateLimitError", "rate_limit_error"}},
      {500, {"InternalServerError", "api_error"}},
      {503, {"ServiceUnavailableError", "overloaded_error"}},
      {504, {"TimeoutError", "timeout_error"}}};
  for (const auto& [status, names] : kinds) {
    const ApiError error(status, "a \"message\"\n\xff", "field");
    EXPECT_EQ(Json::parse(error_body(error)), (Json{{"error",
                                                     {{"message", "a \"message\"\n\ufffd"},
                                                      {"type", names.first},
                                                      {"param", "field"},
                                                      {"code", status}}}}));
    EXPECT_EQ(Json::parse(messages_error_body(error)),
              (Json{{"type", "error"},
                    {"error", {{"type", names.second}, {"message", "a \"message\"\n\ufffd"}}}}));
  }
  EXPECT_TRUE(Json::parse(error_body(ApiError(400, "m")))["error"]["param"].is_null());
}

TEST(Api, ErrorsOfTheEngineAreTheClientsUnlessTheMachineIsToBlame) {
  const auto error_with = [](ExitCode code) {
    return to_api_error(Error({.what = "no",
                               .where = "here",
                               .expected = "this",
                               .found = "that",
                               .hint = "try",
                               .exit_code = code}));
  };
  EXPECT_EQ(error_with(ExitCode::kBadInput).status(), 400);
  EXPECT_EQ(error_with(ExitCode::kMachine).status(), 500);
  EXPECT_EQ(error_with(ExitCode::kBadInput).message(), "no (here); expected this; found that; try");
  EXPECT_EQ(to_api_error(std::runtime_error("odd")).status(), 500);
  EXPECT_EQ(to_api_error(ApiError(429, "full")).status(), 429);
}

}  // namespace
}  // namespace levin::serve::api
