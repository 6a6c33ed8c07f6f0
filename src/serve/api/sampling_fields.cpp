#include "serve/api/sampling_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "serve/api/api_error.h"

namespace levin::serve::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr std::size_t kMaxStops = 64;
constexpr std::string_view kUseStructured = "use response_format";

constexpr Field kCommon[] = {
    {"model"},
    {"max_tokens"},
    {"temperature"},
    {"top_p"},
    {"n"},
    {"stream"},
    {"stream_options"},
    {"stop"},
    {"seed"},
    {"logprobs"},
    {"logit_bias"},
    {"presence_penalty"},
    {"frequency_penalty"},
    {"user", Support::kNoEffect},
    {"metadata", Support::kNoEffect},
    // vLLM's.
    {"top_k"},
    {"min_p"},
    {"repetition_penalty"},
    {"stop_token_ids"},
    {"include_stop_str_in_output"},
    {"ignore_eos"},
    {"min_tokens"},
    {"skip_special_tokens"},
    {"truncate_prompt_tokens"},
    {"allowed_token_ids"},
    {"response_format"},
    {"structured_outputs"},
    {"priority"},
    {"request_id"},
    {"return_token_ids"},
    {"add_special_tokens", Support::kNoEffect},  // the tokenizer adds none
    {"spaces_between_special_tokens", Support::kNoEffect},
    {"length_penalty", Support::kRefused, "1.0"},
    {"use_beam_search", Support::kRefused, "false"},
    {"early_stopping", Support::kRefused, "false"},
    {"prompt_logprobs", Support::kRefused, "", "levin eval scores texts"},
    {"bad_words", Support::kRefused, "[]", "use logit_bias"},
    {"cache_salt", Support::kRefused, "", "prefixes are shared by all clients of a server"},
    {"thinking_token_budget", Support::kRefused, ""},
    {"repetition_detection", Support::kRefused, ""},
    {"stream_interval", Support::kRefused, "1"},
    {"logits_processors", Support::kRefused, "[]"},
    {"vllm_xargs", Support::kRefused, "{}"},
    {"kv_transfer_params", Support::kRefused, ""},
    {"return_tokens_as_token_ids", Support::kRefused, "false", "use return_token_ids"},
    {"guided_json", Support::kRefused, "", kUseStructured},
    {"guided_regex", Support::kRefused, "", kUseStructured},
    {"guided_choice", Support::kRefused, "", kUseStructured},
    {"guided_grammar", Support::kRefused, "", kUseStructured},
    {"guided_decoding_backend", Support::kRefused, "", kUseStructured},
    {"guided_whitespace_pattern", Support::kRefused, "", kUseStructured},
};

void read_penalties(const FieldReader& fields, engine::SamplingParams& params) {
  params.presence_penalty = fields.number("presence_penalty").value_or(params.presence_penalty);
  params.frequency_penalty = fields.number("frequency_penalty").value_or(params.frequency_penalty);
  params.repetition_penalty =
      fields.number("repetition_penalty").value_or(params.repetition_penalty);
}

// {"token id": bias}
void read_logit_bias(const FieldReader& fields, const ModelFacts& facts,
                     engine::SamplingParams& params) {
  const Json* biases = fields.object("logit_bias");
  if (biases == nullptr) return;
  for (const auto& [key, value] : biases->items()) {
    int32_t token = -1;
    const char* end = key.data() + key.size();
    const bool whole = std::from_chars(key.data(), end, token).ptr == end && !key.empty();
    if (!whole || token < 0 || token >= facts.vocab_size || !value.is_number()) {
      fields.fail("logit_bias",
                  fmt::format("an object of numbers by token id (0 to {})", facts.vocab_size - 1));
    }
    params.logit_bias.emplace_back(token, value.get<float>());
  }
}

void read_stops(const FieldReader& fields, const ModelFacts& facts,
                engine::SamplingParams& params) {
  params.stop = read_strings(fields, "stop", kMaxStops);
  params.stop_token_ids = fields.token_ids("stop_token_ids", facts.vocab_size);
  if (params.stop_token_ids.size() > kMaxStops) {
    fields.fail("stop_token_ids", fmt::format("at most {} token ids", kMaxStops));
  }
  params.include_stop_str_in_output = fields.boolean("include_stop_str_in_output").value_or(false);
  params.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  params.min_tokens = fields.integer("min_tokens", 0, kMost).value_or(0);
}

void read_stream_options(const FieldReader& fields, GenerationRequest& request) {
  request.stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.object("stream_options");
  if (options == nullptr) return;
  if (!request.stream) {
    throw ApiError(400, "stream_options is for requests with stream: true", "stream_options");
  }
  const FieldReader reader(*options, "stream_options.");
  request.include_usage = reader.boolean("include_usage").value_or(false);
  request.continuous_usage = reader.boolean("continuous_usage_stats").value_or(false);
  for (const auto& [name, value] : options->items()) {
    if (name == "include_usage" || name == "continuous_usage_stats") continue;
    // Padding against observers of the traffic's sizes; ours would need TLS in front anyhow.
    if (name == "include_obfuscation" && value == false) continue;
    throw ApiError(400, fmt::format("stream_options.{} is not supported", name),
                   "stream_options." + name);
  }
}

void read_schema(const Json& holder, const std::string& path, const char* name,
                 GenerationRequest& request) {
  const FieldReader reader(holder, path);
  const Json* schema = reader.find(name);
  if (schema == nullptr || !(schema->is_object() || schema->is_boolean())) {
    reader.fail(name, "a JSON schema");
  }
  request.shape = OutputShape::kJsonSchema;
  request.schema = std::make_shared<const Json>(*schema);
}

void read_response_format(const FieldReader& fields, GenerationRequest& request) {
  const Json* format = fields.object("response_format");
  if (format == nullptr) return;
  const FieldReader reader(*format, "response_format.");
  const auto type = reader.string("type");
  if (type == "text") return;
  if (type == "json_object") {
    request.shape = OutputShape::kJsonObject;
  } else if (type == "json_schema") {
    const Json* inner = reader.object("json_schema");
    if (inner == nullptr) reader.fail("json_schema", "an object with a schema");
    read_schema(*inner, "response_format.json_schema.", "schema", request);
  } else if (type == "structural_tag") {
    throw ApiError(400, "response_format structural_tag is not supported", "response_format.type");
  } else {
    reader.fail("type", "text, json_object or json_schema");
  }
}

void read_structured_outputs(const FieldReader& fields, GenerationRequest& request) {
  const Json* outputs = fields.object("structured_outputs");
  if (outputs == nullptr) return;
  for (const auto& [name, value] : outputs->items()) {
    if (value.is_null()) continue;
    if (name == "json") {
      read_schema(*outputs, "structured_outputs.", "json", request);
    } else if (name == "json_object" && value.is_boolean()) {
      if (value == true) request.shape = OutputShape::kJsonObject;
    } else {
      throw ApiError(
          400,
          fmt::format("structured_outputs.{} is not supported: json and json_object are", name),
          "structured_outputs." + name);
    }
  }
}

}  // namespace

std::vector<Field> with_common_fields(std::span<const Field> own) {
  std::vector<Field> all(own.begin(), own.end());
  all.insert(all.end(), std::begin(kCommon), std::end(kCommon));
  return all;
}

std::vector<std::string> read_strings(const FieldReader& fields, std::string_view name,
                                      std::size_t most) {
  const Json* value = fields.find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  std::vector<std::string> strings;
  const std::string expected = fmt::format("a string or an array of at most {} strings", most);
  if (!value->is_array() || value->size() > most) fields.fail(name, expected);
  for (const Json& each : *value) {
    if (!each.is_string()) fields.fail(name, expected);
    strings.push_back(each.get<std::string>());
  }
  return strings;
}

void read_sampling(const FieldReader& fields, engine::SamplingParams& params) {
  params.temperature = fields.number("temperature").value_or(params.temperature);
  params.top_p = fields.number("top_p").value_or(params.top_p);
  params.top_k = static_cast<int>(fields.integer("top_k", -1, 1 << 30).value_or(params.top_k));
}

void check_sampling(const GenerationRequest& request) {
  engine::SamplingParams params = request.sampling;
  params.max_tokens = request.max_tokens.value_or(kMost);
  try {
    engine::validate(params);
  } catch (const Error& error) {
    const ErrorParts& parts = error.parts();
    throw ApiError(400,
                   fmt::format("{} must be {}; found {}", parts.where, parts.expected, parts.found),
                   parts.where);
  }
}

void read_common_fields(const FieldReader& fields, const ModelFacts& facts,
                        GenerationRequest& request) {
  engine::SamplingParams& params = request.sampling;
  params = facts.default_sampling;
  request.model = fields.string("model").value_or("");
  request.request_id = fields.string("request_id").value_or("");
  if (request.request_id.size() > 128) {
    fields.fail("request_id", "a string of at most 128 bytes");
  }
  request.n = static_cast<int>(fields.integer("n", 1, facts.max_choices).value_or(1));
  request.priority = static_cast<int>(fields.integer("priority", -(1 << 30), 1 << 30).value_or(0));
  request.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  read_stream_options(fields, request);
  read_sampling(fields, params);
  params.min_p = fields.number("min_p").value_or(params.min_p);
  read_penalties(fields, params);
  read_logit_bias(fields, facts, params);
  read_stops(fields, facts, params);
  const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(), kMost);
  if (seed) params.seed = static_cast<uint64_t>(*seed);
  request.max_tokens = fields.integer("max_tokens", 1, kMost);
  params.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  request.truncate_prompt_tokens = fields.integer("truncate_prompt_tokens", 1, kMost);
  request.allowed_token_ids = fields.token_ids("allowed_token_ids", facts.vocab_size);
  read_response_format(fields, request);
  read_structured_outputs(fields, request);
  // Together they could leave no token to choose.
  if (!request.allowed_token_ids.empty() && params.min_tokens > 0) {
    throw ApiError(400, "min_tokens is not supported beside allowed_token_ids", "min_tokens");
  }
}

void check_grammar(const FieldReader& fields, const GenerationRequest& request) {
  if (request.shape == OutputShape::kText && !request.forces_calls()) return;
  const char* grammar = request.forces_calls() ? "a forced tool_choice" : "response_format";
  for (const char* name : {"ignore_eos", "min_tokens", "allowed_token_ids"}) {
    const Json* value = fields.find(name);
    if (value == nullptr || *value == false || *value == 0 || value->empty()) continue;
    throw ApiError(400, fmt::format("{} is not supported beside {}", name, grammar), name);
  }
}

}  // namespace levin::serve::api
