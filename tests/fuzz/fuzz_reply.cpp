// Any output of a model, in any pieces, as answers of the four APIs: the events of a stream must be
// events, each with JSON on one line, in the order of its API, and add up to the whole answer. The
// first four bytes say which API and what is asked for.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/fields.h"
#include "serve/api/reply.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace {

using Json = nlohmann::ordered_json;
using namespace levin::serve::api;
using levin::text::Tokenizer;

void require(bool condition) {
  if (!condition) std::abort();
}

// One token for each byte.
const Tokenizer& tokenizer() {
  static const Tokenizer made = [] {
    Json file = Json::parse(R"({
      "added_tokens": [], "normalizer": null, "decoder": {"type": "ByteLevel"},
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
      "model": {"type": "BPE", "merges": [], "vocab": {}}})");
    for (int byte = 0; byte < 256; ++byte) {
      std::string spelling;
      levin::text::append_utf8(spelling,
                               levin::text::byte_to_character(static_cast<uint8_t>(byte)));
      file["model"]["vocab"][spelling] = byte;
    }
    return Tokenizer::parse(file.dump(), "fuzz");
  }();
  return made;
}

struct Event {
  std::string name;
  Json data;  // null for [DONE]
};

std::vector<Event> parse_events(std::string_view out) {
  require(!levin::text::find_invalid_utf8(out));
  std::vector<Event> events;
  while (!out.empty()) {
    const std::size_t end = out.find("\n\n");
    require(end != out.npos);
    std::string_view lines = out.substr(0, end);
    out.remove_prefix(end + 2);
    Event event;
    if (lines.starts_with("event: ")) {
      const std::size_t line = lines.find('\n');
      require(line != lines.npos);
      event.name = lines.substr(7, line - 7);
      lines.remove_prefix(line + 1);
    }
    require(lines.starts_with("data: ") && lines.find_first_of("\r\n") == lines.npos);
    lines.remove_prefix(6);
    if (lines != "[DONE]") event.data = Json::parse(lines);
    events.push_back(std::move(event));
  }
  return events;
}

GenerationRequest request_of(const uint8_t* data) {
  GenerationRequest request;
  request.dialect = static_cast<Dialect>(data[0] % 4);
  request.stream = true;
  request.include_usage = (data[1] & 1) != 0;
  request.continuous_usage = (data[1] & 2) != 0;
  request.include_reasoning = (data[1] & 4) == 0;
  request.parallel_tool_calls = (data[1] & 8) == 0;
  request.return_token_ids = (data[1] & 16) != 0;
  if ((data[1] & 32) != 0) request.sampling.logprobs = 1;
  const bool several = request.dialect == Dialect::kChat || request.dialect == Dialect::kCompletion;
  request.n = several && (data[1] & 64) != 0 ? 2 : 1;
  request.echo = request.dialect == Dialect::kCompletion && (data[1] & 128) != 0;
  request.tools = std::make_shared<const Json>(Json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
          "s": {"type": "string"}, "i": {"type": "integer"}, "o": {"type": "object"}}}}}])"));
  request.tool_mode = ToolMode::kAuto;
  return request;
}

std::unique_ptr<Reply> reply_of(const GenerationRequest& request) {
  ReplyHead head = {.id = "id", .created = 1, .model = "m", .prompts = {{1, 2}}, .echoes = {"e"}};
  switch (request.dialect) {
    case Dialect::kCompletion:
      return make_completion_reply(request, std::move(head), tokenizer());
    case Dialect::kResponses:
      return make_responses_reply(request, std::move(head));
    case Dialect::kMessages:
      return make_messages_reply(std::move(head));
    case Dialect::kChat:
      break;
  }
  return make_chat_reply(request, std::move(head), tokenizer());
}

// What chunks of a choice add up to.
struct Sum {
  std::string text, reasoning, finish_reason;
  std::vector<std::string> arguments;
};

void check_chunks(const std::vector<Event>& events, const Json& whole, bool chat) {
  require(!events.empty() && events.back().data.is_null());
  std::map<int, Sum> sums;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    require(events[i].data.is_object() && events[i].name.empty());
    for (const Json& choice : events[i].data["choices"]) {
      Sum& sum = sums[choice["index"]];
      require(sum.finish_reason.empty());
      if (!choice["finish_reason"].is_null()) sum.finish_reason = choice["finish_reason"];
      if (!chat) {
        sum.text += choice["text"];
        continue;
      }
      const Json& delta = choice["delta"];
      sum.text += delta.value("content", "");
      sum.reasoning += delta.value("reasoning", "");
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        const std::size_t index = call["index"];
        if (call.contains("id")) sum.arguments.emplace_back();
        require(index + 1 == sum.arguments.size());
        sum.arguments.back() += call["function"]["arguments"];
      }
    }
  }
  for (const Json& choice : whole["choices"]) {
    const Sum& sum = sums[choice["index"]];
    require(sum.finish_reason == choice["finish_reason"]);
    if (!chat) {
      require(sum.text == choice["text"]);
      continue;
    }
    const Json& message = choice["message"];
    const auto text_of = [](const Json& text) {
      return text.is_null() ? std::string() : text.get<std::string>();
    };
    require(sum.text == text_of(message["content"]));
    require(message["reasoning"].is_null() || sum.reasoning == message["reasoning"]);
    const Json calls = message.value("tool_calls", Json::array());
    require(calls.size() == sum.arguments.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      require(calls[i]["function"]["arguments"] == sum.arguments[i]);
      require(Json::parse(sum.arguments[i]).is_object());
    }
  }
}

// Blocks one after the other, with the deltas of each between its beginning and its end.
void check_message(const std::vector<Event>& events, const Json& whole) {
  require(events.size() >= 3 && events.front().name == "message_start");
  require(events[events.size() - 2].name == "message_delta");
  require(events.back().name == "message_stop");
  std::map<std::string, std::string> sums;
  int blocks = 0;
  bool open = false;
  std::string type;
  std::string input;
  for (const Event& event : events) {
    require(event.data["type"] == event.name);
    if (!event.name.starts_with("content_block")) continue;
    require(open == (event.name != "content_block_start"));
    require(event.data["index"] == blocks);
    if (event.name == "content_block_start") {
      open = true;
      type = event.data["content_block"]["type"];
    }
    if (event.name == "content_block_stop") {
      open = false;
      ++blocks;
      require(type != "tool_use" || Json::parse(input).is_object());
      input.clear();
    }
    if (event.name != "content_block_delta") continue;
    const std::string kind = event.data["delta"]["type"];
    require(kind == (type == "tool_use" ? "input_json_delta" : type + "_delta"));
    input += event.data["delta"].value("partial_json", "");
    sums["text"] += event.data["delta"].value("text", "");
    sums["thinking"] += event.data["delta"].value("thinking", "");
  }
  require(!open);
  std::string text;
  for (const Json& block : whole["content"]) text += block.value("text", "");
  require(text == sums["text"]);
}

void check_response(const std::vector<Event>& events, const Json& whole) {
  require(!events.empty());
  int64_t sequence = 0;
  std::string text;
  for (const Event& event : events) {
    require(event.data["type"] == event.name && event.data["sequence_number"] == sequence++);
    if (event.name == "response.output_text.delta") text += event.data["delta"];
    if (event.name == "response.function_call_arguments.done") {
      require(Json::parse(event.data["arguments"].get<std::string>()).is_object());
    }
  }
  // Items come as the model writes them; a whole answer has them by kind.
  const auto text_of = [](const Json& output) {
    std::string all;
    for (const Json& item : output) {
      if (item["type"] != "message") continue;
      for (const Json& part : item["content"]) all += part["text"];
    }
    return all;
  };
  require(text == text_of(whole["output"]));
  require(text == text_of(events.back().data["response"]["output"]));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const GenerationRequest request = request_of(data);
  ChoiceFormat format;
  format.plain = request.dialect == Dialect::kCompletion;
  format.include_reasoning = request.include_reasoning;
  format.parallel_tool_calls = request.parallel_tool_calls;
  if (!format.plain) {
    format.assistant.reasoning = levin::text::ReasoningFormat::kNemotronV3;
    format.assistant.tool_calls = levin::text::ToolCallFormat::kQwen3Coder;
    format.assistant.prompt = static_cast<levin::text::PromptReasoning>((data[0] >> 4) & 3);
    format.assistant.tools = levin::text::ToolParameters(*request.tools);
  }
  uint32_t random = data[2] + 256u * data[3] + 1;
  // The engine hands out whole characters only.
  const std::string text =
      levin::text::to_valid_utf8({reinterpret_cast<const char*>(data) + 4, size - 4});
  const std::vector<int32_t> ids = tokenizer().encode(text, false);
  if (ids.empty()) return 0;  // an output has at least one token

  std::vector<std::unique_ptr<Choice>> choices;
  for (int i = 0; i < request.n; ++i) choices.push_back(std::make_unique<Choice>(i, format));
  const auto reply = reply_of(request);
  Usage usage;
  std::string out;
  reply->begin(usage, out);
  levin::text::StreamDecoder decoder(tokenizer());
  for (std::size_t at = 0; at < ids.size();) {
    random = random * 1664525u + 1013904223u;
    levin::engine::Stream::Piece piece;
    for (std::size_t count = 1 + (random >> 24) % 12; count > 0 && at < ids.size(); --count, ++at) {
      piece.tokens.push_back(ids[at]);
      piece.text += decoder.push(ids[at]);
      if (request.sampling.logprobs) {
        piece.logprobs.push_back({{ids[at], -1.0F}, {{ids[at], -1.0F}}});
      }
    }
    usage.completion_tokens += static_cast<int64_t>(piece.tokens.size());
    for (const auto& choice : choices) {
      auto copy = piece;
      const ChoiceDelta delta = choice->push(std::move(copy));
      reply->add(*choice, delta, usage, out);
    }
  }
  for (const auto& choice : choices) {
    levin::engine::Result result;
    result.finish_reason = (data[0] & 8) != 0 ? levin::engine::FinishReason::kLength
                                              : levin::engine::FinishReason::kStop;
    const ChoiceDelta last = choice->finish(std::move(result));
    if (!last.message.empty()) reply->add(*choice, last, usage, out);
    reply->finish_choice(*choice, usage, out);
  }
  reply->end(choices, usage, out);
  for (const auto& choice : choices) choice->text_offset = 0;
  const Json whole = Json::parse(dump(reply_of(request)->whole(choices, usage)));
  const std::vector<Event> events = parse_events(out);
  switch (request.dialect) {
    case Dialect::kChat:
    case Dialect::kCompletion:
      check_chunks(events, whole, request.dialect == Dialect::kChat);
      break;
    case Dialect::kMessages:
      check_message(events, whole);
      break;
    case Dialect::kResponses:
      check_response(events, whole);
      break;
  }
  return 0;
}
