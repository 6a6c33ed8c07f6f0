// Answers of /v1/completions.
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/fields.h"
#include "serve/api/reply.h"
#include "text/utf8.h"

namespace levin::serve::api {
namespace {

using Json = nlohmann::ordered_json;

class CompletionReply : public Reply {
 public:
  CompletionReply(const GenerationRequest& request, ReplyHead head,
                  const text::Tokenizer& tokenizer)
      : request_(request), head_(std::move(head)), tokenizer_(tokenizer) {}

  void add(Choice& choice, const ChoiceDelta& delta, const Usage& usage,
           std::string& out) override {
    std::string text = delta.message.content;
    if (!choice.announced) text = echo_of(choice) + text;
    choice.announced = true;
    // A chunk without text too, so that the time of the first token shows.
    Json chunk = make_chunk(usage);
    Json entry = {{"index", choice.index()},
                  {"text", text},
                  {"logprobs", logprobs_json(choice.text_offset, delta.logprobs)},
                  {"finish_reason", nullptr}};
    if (request_.return_token_ids) entry["token_ids"] = delta.tokens;
    chunk["choices"].push_back(std::move(entry));
    append_event(out, chunk);
  }

  void finish_choice(Choice& choice, const Usage& usage, std::string& out) override {
    Json chunk = make_chunk(usage);
    chunk["choices"].push_back({{"index", choice.index()},
                                {"text", ""},
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
                 {"object", "text_completion"},
                 {"created", head_.created},
                 {"model", head_.model},
                 {"choices", Json::array()},
                 {"usage", usage_json(usage)},
                 {"timings", timings_json(*choices.front())}};
    for (const auto& choice : choices) {
      Json entry = {{"index", choice->index()},
                    {"text", echo_of(*choice) + choice->message().content},
                    {"logprobs", logprobs_json(choice->text_offset, choice->logprobs())},
                    {"finish_reason", choice->finish_reason()},
                    {"stop_reason", choice->stop_reason()}};
      if (request_.return_token_ids) {
        entry["token_ids"] = choice->tokens();
        entry["prompt_token_ids"] = head_.prompts[prompt_of(*choice)];
      }
      json["choices"].push_back(std::move(entry));
    }
    return json;
  }

 private:
  std::size_t prompt_of(const Choice& choice) const {
    return static_cast<std::size_t>(choice.index() / request_.n);
  }

  std::string echo_of(const Choice& choice) const {
    return request_.echo ? head_.echoes[prompt_of(choice)] : std::string();
  }

  Json make_chunk(const Usage& usage) const {
    Json chunk = {{"id", head_.id},
                  {"object", "text_completion"},
                  {"created", head_.created},
                  {"model", head_.model},
                  {"choices", Json::array()}};
    if (request_.include_usage) {
      chunk["usage"] = request_.continuous_usage ? usage_json(usage) : Json();
    }
    return chunk;
  }

  // `offset` moves behind the tokens.
  Json logprobs_json(int64_t& offset, std::span<const engine::TokenLogprobs> logprobs) const {
    if (!request_.sampling.logprobs) return nullptr;
    Json offsets = Json::array();
    Json values = Json::array();
    Json tokens = Json::array();
    Json tops = Json::array();
    for (const engine::TokenLogprobs& token : logprobs) {
      const std::string_view bytes = tokenizer_.bytes_of(token.chosen.token);
      offsets.push_back(offset);
      offset += static_cast<int64_t>(bytes.size());
      values.push_back(token.chosen.logprob);
      tokens.push_back(text::to_valid_utf8(bytes));
      Json top = Json::object();
      for (const engine::Logprob& each : token.top) {
        top[text::to_valid_utf8(tokenizer_.bytes_of(each.token))] = each.logprob;
      }
      top[tokens.back().get<std::string>()] = token.chosen.logprob;
      tops.push_back(std::move(top));
    }
    return {{"text_offset", std::move(offsets)},
            {"token_logprobs", std::move(values)},
            {"tokens", std::move(tokens)},
            {"top_logprobs", std::move(tops)}};
  }

  const GenerationRequest& request_;
  ReplyHead head_;
  const text::Tokenizer& tokenizer_;
};

}  // namespace

std::unique_ptr<Reply> make_completion_reply(const GenerationRequest& request, ReplyHead head,
                                             const text::Tokenizer& tokenizer) {
  return std::make_unique<CompletionReply>(request, std::move(head), tokenizer);
}

}  // namespace levin::serve::api
