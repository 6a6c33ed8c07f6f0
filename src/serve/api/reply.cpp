#include "serve/api/reply.h"

#include <nlohmann/json.hpp>

#include "serve/api/fields.h"

namespace levin::serve::api {

using Json = nlohmann::ordered_json;

void append_event(std::string& out, const Json& data) {
  out += "data: ";
  out += dump(data);  // on one line
  out += "\n\n";
}

void append_event(std::string& out, std::string_view name, const Json& data) {
  out += "event: ";
  out += name;
  out += '\n';
  append_event(out, data);
}

void Reply::begin(const Usage& /*usage*/, std::string& /*out*/) {}

void Reply::fail(const ApiError& error, std::string& out) {
  out += "data: ";
  out += error_body(error);
  out += "\n\ndata: [DONE]\n\n";
}

std::string Reply::error_document(const ApiError& error) const {
  return error_body(error);
}

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

Json timings_json(const Choice& choice) {
  const engine::Result& result = choice.result();
  const engine::Timings& timings = result.timings;
  const auto tokens = static_cast<int64_t>(choice.tokens().size());
  const double tpot = timings.tpot_seconds(tokens);
  return {{"queue_ms", timings.queue_seconds * 1e3},
          {"prefill_ms", timings.ttft_seconds * 1e3},
          {"ttft_ms", (timings.queue_seconds + timings.ttft_seconds) * 1e3},
          {"decode_ms", timings.decode_seconds * 1e3},
          {"tpot_ms", tpot * 1e3},
          {"tokens_per_second", tpot > 0 ? 1 / tpot : 0.0},
          {"cached_tokens", result.cached_tokens},
          {"drafted_tokens", result.speculation.num_draft_tokens},
          {"accepted_tokens", result.speculation.num_accepted_tokens},
          {"preemptions", result.preemptions}};
}

}  // namespace levin::serve::api
