#include "bench/client/server_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/client/answer.h"
#include "core/error.h"

namespace levin::bench::client {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refused(const Target& target, const std::string& path, const HttpAnswer& answer) {
  const bool key = answer.status == 401 || answer.status == 403;
  const bool busy = answer.status == 429 || answer.status >= 500;
  throw Error({.what = "the server refuses a request",
               .where = target.url + path,
               .expected = "200",
               .found = fmt::format("{}: {}", answer.status, error_message(answer.body)),
               .hint = key                    ? "--api-key or OPENAI_API_KEY has its key"
                       : answer.status == 404 ? "--endpoint and --model name what is there"
                                              : "",
               .exit_code = busy ? ExitCode::kMachine : ExitCode::kBadInput});
}

std::vector<std::string> models_of(const Target& target) {
  const std::string path = "/v1/models";
  const HttpAnswer answer = http_get(target, path);
  if (answer.status != 200) refused(target, path, answer);
  const Json json = Json::parse(answer.body, nullptr, false);
  std::vector<std::string> names;
  if (json.is_object() && json.contains("data") && json["data"].is_array()) {
    for (const Json& model : json["data"]) {
      if (model.is_object() && model.contains("id") && model["id"].is_string()) {
        names.push_back(model["id"].get<std::string>());
      }
    }
  }
  if (names.empty()) {
    throw Error({.what = "no list of models",
                 .where = target.url + path,
                 .expected = "an object with \"data\" that names a model",
                 .found = error_message(answer.body),
                 .hint = "is this a server of OpenAI's API?"});
  }
  return names;
}

// Tokens of the prompt; nothing without usage.
std::optional<double> prompt_tokens(const Target& target, const RequestStyle& style,
                                    const std::string& prompt) {
  RequestStyle once = style;
  once.ignore_eos = false;
  const HttpAnswer answer = http_post(target, style.endpoint, request_body(once, prompt, 1, false));
  if (answer.status != 200) refused(target, style.endpoint, answer);
  const Json json = Json::parse(answer.body, nullptr, false);
  if (!json.is_object() || !json.contains("usage") || !json["usage"].is_object()) return {};
  const Json& usage = json["usage"];
  if (!usage.contains("prompt_tokens") || !usage["prompt_tokens"].is_number()) return {};
  return usage["prompt_tokens"].get<double>();
}

}  // namespace

std::string request_body(const RequestStyle& style, const std::string& prompt,
                         int64_t output_tokens, bool stream) {
  Json body = {{"model", style.model}};
  if (style.chat()) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt}}});
  } else {
    body["prompt"] = prompt;
  }
  body["max_tokens"] = output_tokens;
  body["temperature"] = style.temperature;
  if (style.ignore_eos) body["ignore_eos"] = true;
  body["stream"] = stream;
  if (stream) body["stream_options"] = {{"include_usage", true}};
  return body.dump();
}

std::string find_model(const Target& target, const std::string& wanted) {
  const std::vector<std::string> names = models_of(target);
  if (wanted.empty() && names.size() == 1) return names.front();
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return wanted;
  throw Error({.what = wanted.empty() ? "the server has several models" : "no such model",
               .where = "--model",
               .expected = fmt::format("one of: {}", fmt::join(names, ", ")),
               .found = wanted,
               .hint = {}});
}

std::optional<ServerCounters> read_counters(const Target& target) {
  const HttpAnswer answer = http_get(target, "/metrics");
  if (answer.status != 200) return std::nullopt;
  const ServerCounters counters = parse_counters(answer.body);
  if (!counters.generated_tokens && !counters.drafts) return std::nullopt;
  return counters;
}

std::optional<TokenScale> measure_scale(const Target& target, const RequestStyle& style,
                                        const Dataset& dataset, const std::string& prefix) {
  constexpr std::size_t kBytes = 600;  // short enough for every context
  constexpr uint64_t kPieces = 4;
  const auto alone = prompt_tokens(target, style, prefix);
  if (!alone) return std::nullopt;
  double bytes = 0;
  double tokens = 0;
  for (uint64_t i = 0; i < kPieces; ++i) {
    const std::string piece = dataset.piece(i, kBytes);
    const auto with = prompt_tokens(target, style, prefix + piece);
    if (!with) return std::nullopt;
    bytes += static_cast<double>(piece.size());
    tokens += *with - *alone;
  }
  if (tokens <= 0) return std::nullopt;
  // No text is like that, and prompts would have any size.
  constexpr double kFewest = 0.05, kMost = 100;
  const TokenScale scale{.bytes_per_token = bytes / tokens, .other_tokens = *alone};
  if (scale.bytes_per_token >= kFewest && scale.bytes_per_token <= kMost && *alone >= 0 &&
      *alone <= static_cast<double>(kMostTokens)) {
    return scale;
  }
  throw Error({.what = "the server's \"prompt_tokens\" cannot be",
               .where = target.url + style.endpoint,
               .expected = fmt::format("{} to {} bytes of text in a token", kFewest, kMost),
               .found = fmt::format("{:g}, and {:g} tokens of a prompt besides its text",
                                    scale.bytes_per_token, scale.other_tokens),
               .hint = "is this a server of OpenAI's API?"});
}

}  // namespace levin::bench::client
