// POST /v1/completions.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "serve/api/api_error.h"
#include "serve/api/sampling_fields.h"

namespace levin::serve::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxPrompts = 256;

constexpr Field kCompletionFields[] = {
    {"prompt"},
    {"echo"},
    {"best_of", Support::kRefused, "1", "use n"},
    {"suffix", Support::kRefused, R"("")", "this model does not fill in"},
    {"prompt_embeds", Support::kRefused, ""},
};

std::vector<int32_t> ids_of(const Json& ids, const ModelFacts& facts) {
  const Json holder = {{"prompt", ids}};
  return FieldReader(holder).token_ids("prompt", facts.vocab_size);
}

// A text, an array of texts, an array of token ids, or an array of such arrays.
void read_prompts(const FieldReader& fields, const ModelFacts& facts, GenerationRequest& request) {
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) throw ApiError(400, "prompt is missing", "prompt");
  const std::string expected =
      fmt::format("a text, token ids, or an array of at most {} of either", kMaxPrompts);
  if (prompt->is_string()) {
    request.prompts.emplace_back(prompt->get<std::string>());
    return;
  }
  if (!prompt->is_array() || prompt->empty()) fields.fail("prompt", expected);
  if (prompt->front().is_number()) {
    request.prompts.emplace_back(ids_of(*prompt, facts));
    return;
  }
  if (prompt->size() > kMaxPrompts) fields.fail("prompt", expected);
  for (const Json& each : *prompt) {
    if (each.is_string()) {
      request.prompts.emplace_back(each.get<std::string>());
    } else if (each.is_array()) {
      request.prompts.emplace_back(ids_of(each, facts));
    } else {
      fields.fail("prompt", expected);
    }
  }
}

}  // namespace

std::span<const Field> completion_fields() {
  static const std::vector<Field> fields = with_common_fields(kCompletionFields);
  return fields;
}

GenerationRequest parse_completion(std::string_view body, const ModelFacts& facts) {
  const Json object = parse_body(body);
  GenerationRequest request;
  request.dialect = Dialect::kCompletion;
  request.unknown_fields = check_fields(object, completion_fields());
  const FieldReader fields(object);
  read_common_fields(fields, facts, request);
  check_grammar(fields, request);
  read_prompts(fields, facts, request);
  request.echo = fields.boolean("echo").value_or(false);
  if (const auto logprobs = fields.integer("logprobs", 0, 20)) {
    request.sampling.logprobs = static_cast<int>(*logprobs);
  }
  if (request.echo && request.sampling.logprobs) {
    throw ApiError(400, "echo with logprobs is not supported: levin eval scores texts", "echo");
  }
  check_sampling(request);
  return request;
}

}  // namespace levin::serve::api
