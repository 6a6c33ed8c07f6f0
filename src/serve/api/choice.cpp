#include "serve/api/choice.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace levin::serve::api {
namespace {

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool begins_in_reasoning(const text::AssistantFormat& format) {
  return format.reasoning != text::ReasoningFormat::kNone &&
         format.prompt == text::PromptReasoning::kOpen;
}

}  // namespace

Choice::Choice(int index, const ChoiceFormat& format)
    : index_(index),
      format_(format),
      parser_([&] {
        text::AssistantFormat own = format.assistant;
        own.id_seed += static_cast<uint64_t>(index) << 32;
        return own;
      }()),
      reasoning_(!format.plain && begins_in_reasoning(format.assistant)) {}

// What the client asked to see of it.
text::AssistantDelta Choice::keep(text::AssistantDelta&& delta) {
  if (!format_.include_reasoning) delta.reasoning.clear();
  if (!format_.parallel_tool_calls) {
    std::erase_if(delta.tool_calls, [](const auto& call) { return call.index > 0; });
  }
  message_.reasoning += delta.reasoning;
  message_.content += delta.content;
  for (const text::ToolCallDelta& call : delta.tool_calls) {
    if (call.index == message_.tool_calls.size()) {
      message_.tool_calls.push_back({.id = call.id, .name = call.name, .arguments = {}});
    }
    message_.tool_calls[call.index].arguments += call.arguments;
  }
  return std::move(delta);
}

ChoiceDelta Choice::push(engine::Stream::Piece&& piece) {
  ChoiceDelta delta;
  for (const int32_t token : piece.tokens) {
    if (reasoning_ && contains(format_.reasoning_ends, token)) reasoning_ = false;
    reasoning_tokens_ += reasoning_ ? 1 : 0;
  }
  if (format_.plain) {
    delta.message.content = std::move(piece.text);
    delta.message = keep(std::move(delta.message));
  } else if (!piece.text.empty()) {
    delta.message = keep(parser_.push(piece.text));
  }
  tokens_.insert(tokens_.end(), piece.tokens.begin(), piece.tokens.end());
  logprobs_.insert(logprobs_.end(), piece.logprobs.begin(), piece.logprobs.end());
  delta.tokens = std::move(piece.tokens);
  delta.logprobs = std::move(piece.logprobs);
  return delta;
}

ChoiceDelta Choice::finish(engine::Result&& result) {
  ChoiceDelta delta;
  if (!format_.plain) {
    delta.message = keep(parser_.finish());
    message_.content_from_reasoning = parser_.message().content_from_reasoning;
    message_.malformed = parser_.message().malformed;
  }
  result_ = std::move(result);
  result_->text.clear();
  result_->tokens.clear();
  result_->logprobs.clear();
  return delta;
}

std::string_view Choice::finish_reason() const {
  if (result_->finish_reason == engine::FinishReason::kLength) return "length";
  return message_.tool_calls.empty() ? "stop" : "tool_calls";
}

nlohmann::ordered_json Choice::stop_reason() const {
  if (result_->finish_reason != engine::FinishReason::kStop || tokens_.empty()) return nullptr;
  const int32_t last = tokens_.back();
  const bool by_token = result_->stop_reason == std::to_string(last);
  if (by_token && contains(format_.end_token_ids, last)) return nullptr;
  if (by_token && contains(format_.stop_token_ids, last)) return last;
  return result_->stop_reason;
}

}  // namespace levin::serve::api
