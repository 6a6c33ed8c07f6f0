// Answers of /v1/responses.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/fields.h"
#include "serve/api/reply.h"

namespace levin::serve::api {
namespace {

using Json = nlohmann::ordered_json;

enum class Kind : uint8_t { kNone, kReasoning, kMessage, kCall };

Json text_part(Kind kind, const std::string& text) {
  if (kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", Json::array()},
          {"logprobs", Json::array()}};
}

class ResponsesReply : public Reply {
 public:
  ResponsesReply(const GenerationRequest& request, ReplyHead head)
      : request_(request), head_(std::move(head)) {}

  void begin(const Usage& /*usage*/, std::string& out) override {
    emit("response.created", {{"response", response("in_progress")}}, out);
    emit("response.in_progress", {{"response", response("in_progress")}}, out);
  }

  void add(Choice& /*choice*/, const ChoiceDelta& delta, const Usage& /*usage*/,
           std::string& out) override {
    const text::AssistantDelta& message = delta.message;
    // The end of a call that is open comes before what is behind it.
    for (const text::ToolCallDelta& call : message.tool_calls) {
      if (call.id.empty()) add_call(call, out);
    }
    if (!message.reasoning.empty()) add_text(Kind::kReasoning, message.reasoning, out);
    if (!message.content.empty()) add_text(Kind::kMessage, message.content, out);
    for (const text::ToolCallDelta& call : message.tool_calls) {
      if (!call.id.empty()) add_call(call, out);
    }
  }

  void finish_choice(Choice& choice, const Usage& /*usage*/, std::string& out) override {
    close(choice.finish_reason() == "length" ? "incomplete" : "completed", out);
  }

  void end(std::span<const std::unique_ptr<Choice>> choices, const Usage& usage,
           std::string& out) override {
    const Json final = finished(*choices.front(), usage);
    emit(final["status"] == "incomplete" ? "response.incomplete" : "response.completed",
         {{"response", final}}, out);
  }

  void fail(const ApiError& error, std::string& out) override {
    Json failed = response("failed");
    failed["error"] = {{"code", error_type(error.status())}, {"message", error.message()}};
    emit("response.failed", {{"response", std::move(failed)}}, out);
  }

  Json whole(std::span<const std::unique_ptr<Choice>> choices, const Usage& usage) override {
    std::string unsent;
    const Choice& choice = *choices.front();
    const text::AssistantMessage& message = choice.message();
    if (!message.reasoning.empty() && !message.content_from_reasoning) {
      add_text(Kind::kReasoning, message.reasoning, unsent);
    }
    if (!message.content.empty()) add_text(Kind::kMessage, message.content, unsent);
    for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
      const text::ToolCall& call = message.tool_calls[i];
      add_call({.index = i, .id = call.id, .name = call.name, .arguments = call.arguments}, unsent);
    }
    close(choice.finish_reason() == "length" ? "incomplete" : "completed", unsent);
    return finished(choice, usage);
  }

 private:
  void emit(const char* type, Json data, std::string& out) {
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(data);
    append_event(out, type, event);
  }

  Json response(const char* status) const {
    return {{"id", head_.id},
            {"object", "response"},
            {"created_at", head_.created},
            {"status", status},
            {"error", nullptr},
            {"incomplete_details", nullptr},
            {"instructions", nullptr},
            {"max_output_tokens", request_.max_tokens ? Json(*request_.max_tokens) : Json()},
            {"model", head_.model},
            {"output", output_},
            {"parallel_tool_calls", request_.parallel_tool_calls},
            {"previous_response_id", nullptr},
            {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
            {"store", false},
            {"temperature", request_.sampling.temperature},
            {"text", {{"format", {{"type", "text"}}}}},
            {"tool_choice", tool_choice()},
            {"tools", tools()},
            {"top_p", request_.sampling.top_p},
            {"truncation", "disabled"},
            {"usage", nullptr},
            {"metadata", Json::object()}};
  }

  Json tool_choice() const {
    switch (request_.tool_mode) {
      case ToolMode::kRequired:
        return "required";
      case ToolMode::kNamed:
        return {{"type", "function"}, {"name", request_.tool_name}};
      case ToolMode::kNone:
        return request_.tools ? "none" : "auto";
      case ToolMode::kAuto:
        break;
    }
    return "auto";
  }

  Json tools() const {
    Json flat = Json::array();
    if (!request_.tools) return flat;
    for (const Json& tool : *request_.tools) {
      Json entry = {{"type", "function"}};
      entry.update(tool["function"]);
      flat.push_back(std::move(entry));
    }
    return flat;
  }

  Json finished(const Choice& choice, const Usage& usage) const {
    const bool cut = choice.finish_reason() == "length";
    Json json = response(cut ? "incomplete" : "completed");
    if (cut) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
    json["usage"] = {{"input_tokens", usage.prompt_tokens},
                     {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
                     {"output_tokens", usage.completion_tokens},
                     {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
                     {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
    json["timings"] = timings_json(choice);
    return json;
  }

  std::string item_id(std::string_view prefix) const {
    return fmt::format("{}_{}_{}", prefix, head_.id.substr(head_.id.find('_') + 1), output_.size());
  }

  void open(Kind kind, Json item, std::string& out) {
    close("completed", out);
    kind_ = kind;
    item_ = std::move(item);
    text_.clear();
    emit("response.output_item.added", {{"output_index", output_.size()}, {"item", item_}}, out);
  }

  void add_text(Kind kind, const std::string& text, std::string& out) {
    if (kind_ != kind) {
      Json item = {{"type", "reasoning"}, {"id", item_id("rs")}, {"summary", Json::array()}};
      if (kind == Kind::kMessage) {
        item = {{"type", "message"}, {"id", item_id("msg")}, {"role", "assistant"}};
      }
      item["status"] = "in_progress";
      item["content"] = Json::array();
      open(kind, std::move(item), out);
      emit("response.content_part.added", located({{"part", text_part(kind, "")}}), out);
    }
    text_ += text;
    Json data = {{"delta", text}};
    if (kind == Kind::kMessage) data["logprobs"] = Json::array();
    emit(kind == Kind::kMessage ? "response.output_text.delta" : "response.reasoning_text.delta",
         located(std::move(data)), out);
  }

  void add_call(const text::ToolCallDelta& call, std::string& out) {
    if (!call.id.empty()) {
      open(Kind::kCall,
           {{"type", "function_call"},
            {"id", item_id("fc")},
            {"call_id", call.id},
            {"name", call.name},
            {"arguments", ""},
            {"status", "in_progress"}},
           out);
    }
    if (call.arguments.empty()) return;
    text_ += call.arguments;
    emit("response.function_call_arguments.delta",
         {{"item_id", item_["id"]}, {"output_index", output_.size()}, {"delta", call.arguments}},
         out);
  }

  Json located(Json data) const {
    Json json = {{"item_id", item_["id"]}, {"output_index", output_.size()}, {"content_index", 0}};
    json.update(data);
    return json;
  }

  void close(const char* status, std::string& out) {
    if (kind_ == Kind::kNone) return;
    if (kind_ == Kind::kCall) {
      item_["arguments"] = text_;
      emit("response.function_call_arguments.done",
           {{"item_id", item_["id"]}, {"output_index", output_.size()}, {"arguments", text_}}, out);
    } else {
      Json data = {{"text", text_}};
      if (kind_ == Kind::kMessage) data["logprobs"] = Json::array();
      emit(kind_ == Kind::kMessage ? "response.output_text.done" : "response.reasoning_text.done",
           located(std::move(data)), out);
      const Json part = text_part(kind_, text_);
      emit("response.content_part.done", located({{"part", part}}), out);
      item_["content"].push_back(part);
    }
    item_["status"] = status;
    emit("response.output_item.done", {{"output_index", output_.size()}, {"item", item_}}, out);
    output_.push_back(std::move(item_));
    kind_ = Kind::kNone;
  }

  const GenerationRequest& request_;
  ReplyHead head_;
  Json output_ = Json::array();  // items that are complete
  Kind kind_ = Kind::kNone;      // of the item that is not
  Json item_;
  std::string text_;
  int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<Reply> make_responses_reply(const GenerationRequest& request, ReplyHead head) {
  return std::make_unique<ResponsesReply>(request, std::move(head));
}

}  // namespace levin::serve::api
