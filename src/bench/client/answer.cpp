#include "bench/client/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/printable.h"

namespace levin::bench::client {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kShownBytes = 200;
// An answer in more pieces than this is none of the tokens that were asked for, and has no end.
constexpr int64_t kChunksPerToken = 16;
constexpr int64_t kChunksBesides = 1024;
constexpr int64_t kMostPromptTokens = 1'000'000'000;

std::string shown(std::string_view text) {
  std::string line(text.substr(0, kShownBytes));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  return text::printable(line);
}

bool has_text(const Json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_string() &&
         !value->get_ref<const std::string&>().empty();
}

// Text, reasoning under either of its names, or a piece of a tool call.
bool has_output(const Json& choice) {
  if (has_text(choice, "text")) return true;
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object()) return false;
  const auto calls = delta->find("tool_calls");
  return has_text(*delta, "content") || has_text(*delta, "reasoning") ||
         has_text(*delta, "reasoning_content") ||
         (calls != delta->end() && calls->is_array() && !calls->empty());
}

std::optional<int64_t> count(const Json& object, const char* key) {
  const auto value = object.find(key);
  if (value == object.end() || !value->is_number_integer() || value->get<int64_t>() < 0) {
    return std::nullopt;
  }
  return value->get<int64_t>();
}

std::optional<TokenUsage> usage_of(const Json& usage) {
  const std::optional<int64_t> prompt = count(usage, "prompt_tokens");
  const std::optional<int64_t> output = count(usage, "completion_tokens");
  if (!prompt || !output) return std::nullopt;
  TokenUsage result{.prompt = *prompt, .output = *output, .cached = {}};
  const auto details = usage.find("prompt_tokens_details");
  if (details != usage.end() && details->is_object()) {
    result.cached = count(*details, "cached_tokens");
  }
  return result;
}

}  // namespace

void AnswerReader::fail(std::string error) {
  if (record_.error.empty()) record_.error = std::move(error);
}

void AnswerReader::on_event(std::string_view data, double now) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const Json chunk = Json::parse(data, nullptr, false);
  if (!chunk.is_object()) return fail(fmt::format("broken event: {}", shown(data)));
  if (chunk.contains("error")) return fail("error in the stream: " + error_message(data));
  const auto choices = chunk.find("choices");
  if (choices != chunk.end() && choices->is_array() && !choices->empty()) {
    record_.last = now;
    bool output = false;
    for (const Json& choice : *choices) {
      if (!choice.is_object()) return fail(fmt::format("broken event: {}", shown(data)));
      output = output || has_output(choice);
      if (has_text(choice, "finish_reason")) {
        record_.finish_reason = shown(choice.at("finish_reason").get_ref<const std::string&>());
      }
    }
    if (output) record_.outputs.push_back(now);
    const auto chunks = static_cast<int64_t>(record_.outputs.size());
    if (record_.asked > 0 && chunks > kChunksPerToken * record_.asked + kChunksBesides) {
      return fail(
          fmt::format("the stream does not end: {} chunks of text, {} tokens were asked for",
                      chunks, record_.asked));
    }
  }
  const auto usage = chunk.find("usage");
  if (usage != chunk.end() && usage->is_object()) record_.usage = usage_of(*usage);
}

void AnswerReader::on_end() {
  if (record_.usage) {
    const TokenUsage& usage = *record_.usage;
    if (record_.asked > 0 && usage.output > record_.asked) {
      fail(fmt::format("the server counts {} output tokens, {} were asked for", usage.output,
                       record_.asked));
    }
    if (usage.prompt > kMostPromptTokens) {
      fail(fmt::format("the server counts {} tokens in the prompt", usage.prompt));
    }
    if (usage.cached.value_or(0) > usage.prompt) {
      fail(fmt::format("the server counts {} cached tokens of {} in the prompt", *usage.cached,
                       usage.prompt));
    }
  }
  if (!done_) return fail("the stream ended without [DONE]");
  if (record_.finish_reason.empty()) fail("the stream has no finish_reason");
}

std::string error_message(std::string_view body) {
  const Json json = Json::parse(body, nullptr, false);
  if (json.is_object()) {
    const auto error = json.find("error");
    const Json& holder = error != json.end() ? *error : json;
    if (holder.is_string()) return shown(holder.get_ref<const std::string&>());
    if (holder.is_object() && has_text(holder, "message")) {
      return shown(holder.at("message").get_ref<const std::string&>());
    }
  }
  return shown(body);
}

}  // namespace levin::bench::client
