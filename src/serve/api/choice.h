// One output of a request, taken apart into reasoning, content and tool calls while it comes.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "engine/stream.h"
#include "text/assistant_parser.h"
#include "text/tokenizer.h"

namespace levin::serve::api {

// How outputs of a request are to be read; the same for all of them.
struct ChoiceFormat {
  bool plain = false;  // a completion: everything is content
  text::AssistantFormat assistant;
  bool include_reasoning = true;
  bool parallel_tool_calls = true;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;  // the client's
  std::vector<int32_t> end_token_ids;   // the model's
  // Tokens that end reasoning: </think> and <tool_call>.
  std::vector<int32_t> reasoning_ends;
};

// What an output has gained.
struct ChoiceDelta {
  text::AssistantDelta message = {};
  std::vector<int32_t> tokens = {};
  std::vector<engine::TokenLogprobs> logprobs = {};
};

class Choice {
 public:
  Choice(int index, const ChoiceFormat& format);

  ChoiceDelta push(engine::Stream::Piece&& piece);
  // The output has ended.
  ChoiceDelta finish(engine::Result&& result);

  int index() const { return index_; }
  // All deltas so far.
  const text::AssistantMessage& message() const { return message_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<engine::TokenLogprobs>& logprobs() const { return logprobs_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  bool finished() const { return result_.has_value(); }
  // After finish(): without tokens, text and logprobs, which are here.
  const engine::Result& result() const { return *result_; }
  // "stop", "length" or "tool_calls".
  std::string_view finish_reason() const;
  // The stop string or token of the client that ended it, else null, as in vLLM.
  nlohmann::ordered_json stop_reason() const;

  bool announced = false;   // its first chunk has been written; for replies
  int64_t text_offset = 0;  // bytes of text before the next token; for completions

 private:
  text::AssistantDelta keep(text::AssistantDelta&& delta);

  int index_;
  const ChoiceFormat& format_;
  text::AssistantParser parser_;
  text::AssistantMessage message_;
  std::vector<int32_t> tokens_;
  std::vector<engine::TokenLogprobs> logprobs_;
  bool reasoning_;
  int64_t reasoning_tokens_ = 0;
  std::optional<engine::Result> result_;
};

}  // namespace levin::serve::api
