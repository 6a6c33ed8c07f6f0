// Answers of /v1/messages, the API of Anthropic.
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/fields.h"
#include "serve/api/reply.h"

namespace levin::serve::api {
namespace {

using Json = nlohmann::ordered_json;

enum class Kind : uint8_t { kNone, kThinking, kText, kToolUse };

class MessagesReply : public Reply {
 public:
  explicit MessagesReply(ReplyHead head) : head_(std::move(head)) {}

  void begin(const Usage& usage, std::string& out) override {
    Json message = head();
    message["content"] = Json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = usage_of(usage);
    append_event(out, "message_start", {{"type", "message_start"}, {"message", message}});
  }

  void add(Choice& /*choice*/, const ChoiceDelta& delta, const Usage& /*usage*/,
           std::string& out) override {
    const text::AssistantDelta& message = delta.message;
    // The end of a call that is open comes before what is behind it.
    for (const text::ToolCallDelta& call : message.tool_calls) {
      if (call.id.empty()) add_arguments(call, out);
    }
    if (!message.reasoning.empty()) {
      if (kind_ != Kind::kThinking) {
        open(Kind::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, out);
      }
      emit_delta({{"type", "thinking_delta"}, {"thinking", message.reasoning}}, out);
    }
    if (!message.content.empty()) {
      if (kind_ != Kind::kText) open(Kind::kText, {{"type", "text"}, {"text", ""}}, out);
      emit_delta({{"type", "text_delta"}, {"text", message.content}}, out);
    }
    for (const text::ToolCallDelta& call : message.tool_calls) {
      if (call.id.empty()) continue;
      open(Kind::kToolUse,
           {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", Json::object()}},
           out);
      add_arguments(call, out);
    }
  }

  void finish_choice(Choice& /*choice*/, const Usage& /*usage*/, std::string& out) override {
    close(out);
  }

  void end(std::span<const std::unique_ptr<Choice>> choices, const Usage& usage,
           std::string& out) override {
    const Choice& choice = *choices.front();
    append_event(
        out, "message_delta",
        {{"type", "message_delta"},
         {"delta", {{"stop_reason", stop_reason(choice)}, {"stop_sequence", stop_text(choice)}}},
         {"usage", usage_of(usage)},
         {"timings", timings_json(choice)}});
    append_event(out, "message_stop", {{"type", "message_stop"}});
  }

  void fail(const ApiError& error, std::string& out) override {
    append_event(out, "error", Json::parse(messages_error_body(error)));
  }

  std::string error_document(const ApiError& error) const override {
    return messages_error_body(error);
  }

  Json whole(std::span<const std::unique_ptr<Choice>> choices, const Usage& usage) override {
    const Choice& choice = *choices.front();
    const text::AssistantMessage& message = choice.message();
    Json content = Json::array();
    if (!message.reasoning.empty() && !message.content_from_reasoning) {
      content.push_back({{"type", "thinking"}, {"thinking", message.reasoning}, {"signature", ""}});
    }
    if (!message.content.empty()) {
      content.push_back({{"type", "text"}, {"text", message.content}});
    }
    for (const text::ToolCall& call : message.tool_calls) {
      content.push_back({{"type", "tool_use"},
                         {"id", call.id},
                         {"name", call.name},
                         {"input", Json::parse(call.arguments)}});
    }
    Json json = head();
    json["content"] = std::move(content);
    json["stop_reason"] = stop_reason(choice);
    json["stop_sequence"] = stop_text(choice);
    json["usage"] = usage_of(usage);
    json["timings"] = timings_json(choice);
    return json;
  }

 private:
  Json head() const {
    return {{"id", head_.id}, {"type", "message"}, {"role", "assistant"}, {"model", head_.model}};
  }

  // Anthropic counts cached tokens apart.
  static Json usage_of(const Usage& usage) {
    return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage.cached_tokens},
            {"output_tokens", usage.completion_tokens}};
  }

  static Json stop_text(const Choice& choice) {
    const Json reason = choice.stop_reason();
    return reason.is_string() ? reason : Json();
  }

  static std::string stop_reason(const Choice& choice) {
    if (choice.finish_reason() == "length") return "max_tokens";
    if (choice.finish_reason() == "tool_calls") return "tool_use";
    return stop_text(choice).is_null() ? "end_turn" : "stop_sequence";
  }

  void add_arguments(const text::ToolCallDelta& call, std::string& out) const {
    if (call.arguments.empty()) return;
    emit_delta({{"type", "input_json_delta"}, {"partial_json", call.arguments}}, out);
  }

  void open(Kind kind, const Json& block, std::string& out) {
    close(out);
    kind_ = kind;
    append_event(out, "content_block_start",
                 {{"type", "content_block_start"}, {"index", index_}, {"content_block", block}});
  }

  void emit_delta(const Json& delta, std::string& out) const {
    append_event(out, "content_block_delta",
                 {{"type", "content_block_delta"}, {"index", index_}, {"delta", delta}});
  }

  void close(std::string& out) {
    if (kind_ == Kind::kNone) return;
    append_event(out, "content_block_stop", {{"type", "content_block_stop"}, {"index", index_}});
    ++index_;
    kind_ = Kind::kNone;
  }

  ReplyHead head_;
  Kind kind_ = Kind::kNone;  // of the block that is open
  int index_ = 0;
};

}  // namespace

std::unique_ptr<Reply> make_messages_reply(ReplyHead head) {
  return std::make_unique<MessagesReply>(std::move(head));
}

}  // namespace levin::serve::api
