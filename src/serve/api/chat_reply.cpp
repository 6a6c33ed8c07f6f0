// Answers of /v1/chat/completions.
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/fields.h"
#include "serve/api/reply.h"
#include "text/utf8.h"

namespace levin::serve::api {
namespace {

using Json = nlohmann::ordered_json;

Json token_json(const text::Tokenizer& tokenizer, const engine::Logprob& logprob) {
  const std::string_view bytes = tokenizer.bytes_of(logprob.token);
  Json values = Json::array();
  for (const char byte : bytes) values.push_back(static_cast<unsigned char>(byte));
  return {{"token", text::to_valid_utf8(bytes)},
          {"logprob", logprob.logprob},
          {"bytes", std::move(values)}};
}

Json logprobs_json(const text::Tokenizer& tokenizer,
                   std::span<const engine::TokenLogprobs> logprobs) {
  Json content = Json::array();
  for (const engine::TokenLogprobs& token : logprobs) {
    Json entry = token_json(tokenizer, token.chosen);
    entry["top_logprobs"] = Json::array();
    for (const engine::Logprob& top : token.top) {
      entry["top_logprobs"].push_back(token_json(tokenizer, top));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

Json delta_json(const text::AssistantDelta& delta) {
  Json json = Json::object();
  if (!delta.reasoning.empty()) {
    json["reasoning"] = delta.reasoning;
    json["reasoning_content"] = delta.reasoning;
  }
  if (!delta.content.empty()) json["content"] = delta.content;
  for (const text::ToolCallDelta& call : delta.tool_calls) {
    Json entry = {{"index", call.index}};
    if (!call.id.empty()) {
      entry["id"] = call.id;
      entry["type"] = "function";
      entry["function"]["name"] = call.name;
    }
    entry["function"]["arguments"] = call.arguments;
    json["tool_calls"].push_back(std::move(entry));
  }
  return json;
}

Json message_json(const text::AssistantMessage& message) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json() : Json(text);
  };
  const Json reasoning = message.content_from_reasoning ? Json() : text_or_null(message.reasoning);
  Json json = {{"role", "assistant"},
               {"content", text_or_null(message.content)},
               {"refusal", nullptr},
               {"reasoning", reasoning},
               {"reasoning_content", reasoning}};
  for (const text::ToolCall& call : message.tool_calls) {
    json["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return json;
}

class ChatReply : public Reply {
 public:
  ChatReply(const GenerationRequest& request, ReplyHead head, const text::Tokenizer& tokenizer)
      : request_(request), head_(std::move(head)), tokenizer_(tokenizer) {}

  void add(Choice& choice, const ChoiceDelta& delta, const Usage& usage,
           std::string& out) override {
    if (!choice.announced) {
      Json first = {{"role", "assistant"}, {"content", ""}};
      append_chunk(choice, std::move(first), nullptr, usage, out);
      choice.announced = true;
    }
    const bool with_tokens =
        !delta.logprobs.empty() || (request_.return_token_ids && !delta.tokens.empty());
    if (delta.message.empty() && !with_tokens) return;
    append_chunk(choice, delta_json(delta.message), &delta, usage, out);
  }

  void finish_choice(Choice& choice, const Usage& usage, std::string& out) override {
    Json chunk = make_chunk(usage);
    chunk["choices"].push_back({{"index", choice.index()},
                                {"delta", Json::object()},
                                {"logprobs", nullptr},
                                {"finish_reason", choice.finish_reason()},
                                {"stop_reason", choice.stop_reason()}});
    if (choice.index() == 0) chunk["timings"] = timings_json(choice);
    append_event(out, chunk);
  }

  void end(std::span<const std::unique_ptr<Choice>> /*choices*/, const Usage& usage,
           std::string& out) override {
    if (request_.include_usage) {
      Json chunk = make_chunk(usage);
      chunk["usage"] = usage_json(usage);
      append_event(out, chunk);
    }
    out += "data: [DONE]\n\n";
  }

  Json whole(std::span<const std::unique_ptr<Choice>> choices, const Usage& usage) override {
    Json json = {{"id", head_.id},
                 {"object", "chat.completion"},
                 {"created", head_.created},
                 {"model", head_.model},
                 {"choices", Json::array()},
                 {"usage", usage_json(usage)},
                 {"timings", timings_json(*choices.front())}};
    for (const auto& choice : choices) {
      Json entry = {{"index", choice->index()},
                    {"message", message_json(choice->message())},
                    {"logprobs", nullptr},
                    {"finish_reason", choice->finish_reason()},
                    {"stop_reason", choice->stop_reason()}};
      if (request_.sampling.logprobs) {
        entry["logprobs"] = logprobs_json(tokenizer_, choice->logprobs());
      }
      if (request_.return_token_ids) entry["token_ids"] = choice->tokens();
      json["choices"].push_back(std::move(entry));
    }
    if (request_.return_token_ids) json["prompt_token_ids"] = head_.prompts.front();
    return json;
  }

 private:
  Json make_chunk(const Usage& usage) const {
    Json chunk = {{"id", head_.id},
                  {"object", "chat.completion.chunk"},
                  {"created", head_.created},
                  {"model", head_.model},
                  {"choices", Json::array()}};
    if (request_.include_usage) {
      chunk["usage"] = request_.continuous_usage ? usage_json(usage) : Json();
    }
    return chunk;
  }

  // `source`: of logprobs and token ids.
  void append_chunk(const Choice& choice, Json delta, const ChoiceDelta* source, const Usage& usage,
                    std::string& out) const {
    Json chunk = make_chunk(usage);
    Json entry = {{"index", choice.index()},
                  {"delta", std::move(delta)},
                  {"logprobs", nullptr},
                  {"finish_reason", nullptr}};
    if (source != nullptr && !source->logprobs.empty()) {
      entry["logprobs"] = logprobs_json(tokenizer_, source->logprobs);
    }
    if (source != nullptr && request_.return_token_ids) entry["token_ids"] = source->tokens;
    if (source == nullptr && request_.return_token_ids) {
      chunk["prompt_token_ids"] = head_.prompts.front();
    }
    chunk["choices"].push_back(std::move(entry));
    append_event(out, chunk);
  }

  const GenerationRequest& request_;
  ReplyHead head_;
  const text::Tokenizer& tokenizer_;
};

}  // namespace

std::unique_ptr<Reply> make_chat_reply(const GenerationRequest& request, ReplyHead head,
                                       const text::Tokenizer& tokenizer) {
  return std::make_unique<ChatReply>(request, std::move(head), tokenizer);
}

}  // namespace levin::serve::api
