// Answers in the words of an API: as one JSON document, or as server-sent events.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "serve/api/api_error.h"
#include "serve/api/choice.h"
#include "serve/api/generation_request.h"

namespace levin::serve::api {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt
  int64_t reasoning_tokens = 0;
};

struct ReplyHead {
  std::string id;
  int64_t created = 0;  // Unix time
  std::string model;
  std::vector<std::vector<int32_t>> prompts = {};  // kept when the request asks for token ids
  std::vector<std::string> echoes = {};            // of each prompt, when the request asks for it
};

// Functions append server-sent events to `out`, in this order: begin, then add and finish_choice of
// each choice, then end or fail.
class Reply {
 public:
  virtual ~Reply() = default;

  virtual void begin(const Usage& usage, std::string& out);
  // Also for a delta without text: the first of a choice says that its first token is there.
  virtual void add(Choice& choice, const ChoiceDelta& delta, const Usage& usage,
                   std::string& out) = 0;
  virtual void finish_choice(Choice& choice, const Usage& usage, std::string& out) = 0;
  virtual void end(std::span<const std::unique_ptr<Choice>> choices, const Usage& usage,
                   std::string& out) = 0;
  virtual void fail(const ApiError& error, std::string& out);
  // The answer to a request that is not streamed and has failed.
  virtual std::string error_document(const ApiError& error) const;
  // The whole answer; all choices are finished.
  virtual nlohmann::ordered_json whole(std::span<const std::unique_ptr<Choice>> choices,
                                       const Usage& usage) = 0;
};

// `request` and `tokenizer` must outlive the reply.
std::unique_ptr<Reply> make_chat_reply(const GenerationRequest& request, ReplyHead head,
                                       const text::Tokenizer& tokenizer);
std::unique_ptr<Reply> make_completion_reply(const GenerationRequest& request, ReplyHead head,
                                             const text::Tokenizer& tokenizer);
std::unique_ptr<Reply> make_responses_reply(const GenerationRequest& request, ReplyHead head);
std::unique_ptr<Reply> make_messages_reply(ReplyHead head);

nlohmann::ordered_json usage_json(const Usage& usage);
// Where the time of a request went; of its first choice.
nlohmann::ordered_json timings_json(const Choice& choice);

// One server-sent event, with or without a name.
void append_event(std::string& out, const nlohmann::ordered_json& data);
void append_event(std::string& out, std::string_view name, const nlohmann::ordered_json& data);

}  // namespace levin::serve::api
