// What a client asks for, whichever API it speaks: the requests of the four APIs become this.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/sampling.h"
#include "serve/api/fields.h"

namespace levin::serve::api {

enum class Dialect : uint8_t { kChat, kCompletion, kResponses, kMessages };

enum class ToolMode : uint8_t { kNone, kAuto, kRequired, kNamed };
enum class OutputShape : uint8_t { kText, kJsonObject, kJsonSchema };

// JSON that a header can hold; never null.
using SharedJson = std::shared_ptr<const nlohmann::ordered_json>;

struct GenerationRequest {
  Dialect dialect = Dialect::kChat;
  std::string model;       // as the client named it; empty: any
  std::string request_id;  // its own name for it; empty: none

  // Of a conversation: what the chat template gets, without add_generation_prompt. Messages have
  // strings as content, and objects as arguments of tool calls.
  SharedJson variables;
  // The tools in the form of chat completions, and whether the model may, must or must not call
  // one.
  SharedJson tools;
  ToolMode tool_mode = ToolMode::kNone;
  std::string tool_name;  // kNamed
  bool parallel_tool_calls = true;
  OutputShape shape = OutputShape::kText;
  SharedJson schema;  // kJsonSchema
  std::optional<bool> enable_thinking;
  bool force_nonempty_content = false;
  bool include_reasoning = true;

  // Of a completion: texts or token ids.
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;
  bool echo = false;

  engine::SamplingParams sampling;
  // Instead of sampling.max_tokens. Absent: what there is room for; of a completion a few at most.
  std::optional<int64_t> max_tokens;
  std::vector<int32_t> allowed_token_ids;
  std::optional<int64_t> truncate_prompt_tokens;  // keep the last so many
  int n = 1;
  int priority = 0;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;

  std::vector<std::string> unknown_fields;

  bool forces_calls() const {
    return tool_mode == ToolMode::kRequired || tool_mode == ToolMode::kNamed;
  }
};

// What the fields' defaults and ranges depend on.
struct ModelFacts {
  engine::SamplingParams default_sampling;
  int32_t vocab_size = 0;
  int max_choices = 16;  // n
};

// Each reads the JSON body of a POST. Throws ApiError.
GenerationRequest parse_chat(std::string_view body, const ModelFacts& facts);
GenerationRequest parse_completion(std::string_view body, const ModelFacts& facts);
GenerationRequest parse_responses(std::string_view body, const ModelFacts& facts);
GenerationRequest parse_messages(std::string_view body, const ModelFacts& facts);

// The fields that each of them knows.
std::span<const Field> chat_fields();
std::span<const Field> completion_fields();
std::span<const Field> responses_fields();
std::span<const Field> messages_fields();

}  // namespace levin::serve::api
