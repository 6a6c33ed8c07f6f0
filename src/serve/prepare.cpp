#include "serve/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "engine/grammar_filter.h"
#include "serve/api/api_error.h"
#include "text/grammar/grammar.h"

namespace levin::serve {
namespace {

using api::ApiError;
using api::Dialect;
using api::GenerationRequest;
using api::OutputShape;
using api::ToolMode;

constexpr int64_t kCompletionTokens = 16;  // OpenAI's default of max_tokens for completions
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kToolCall = "<tool_call>";
constexpr std::string_view kTurnStart = "<|im_start|>";

uint64_t random_word() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

Preparer::Preparer(const engine::Engine& engine, const ServeOptions& options,
                   const engine::SpeculativeConfig& speculation)
    : engine_(engine),
      options_(options),
      speculation_(speculation),
      longest_token_bytes_(engine.tokenizer->longest_token_bytes()) {}

api::ModelFacts Preparer::facts() const {
  return {.default_sampling = engine_.default_sampling,
          .vocab_size = static_cast<int32_t>(engine_.model->config.vocab_size),
          .max_choices = options_.max_choices};
}

std::string Preparer::render(const nlohmann::ordered_json& variables,
                             const text::Interrupt& interrupt) const {
  if (!engine_.chat_template) {
    throw ApiError(400, "the model has no chat template: use /v1/completions", "messages");
  }
  nlohmann::ordered_json context = variables;
  context["add_generation_prompt"] = true;
  return engine_.chat_template->render(context, interrupt);
}

std::vector<int32_t> Preparer::tokenize(const std::string& text,
                                        const text::Interrupt& interrupt) const {
  return engine_.tokenizer->encode(text, true, interrupt);
}

void Preparer::check_bytes(const GenerationRequest& request, const std::string& text) const {
  // What will be cut may be of any length.
  if (!longest_token_bytes_ || request.truncate_prompt_tokens) return;
  const std::size_t most = *longest_token_bytes_ * static_cast<std::size_t>(max_model_len());
  if (text.size() <= most) return;
  const char* what = request.dialect == Dialect::kCompletion ? "prompt" : "messages";
  throw ApiError(400,
                 fmt::format("This model's maximum context length is {} tokens, which hold at most "
                             "{} bytes. However, you requested {} bytes in the {}. Please reduce "
                             "the length.",
                             max_model_len(), most, text.size(), what),
                 what);
}

std::vector<Preparer::Prompt> Preparer::prompts_of(const GenerationRequest& request,
                                                   const text::Interrupt& interrupt) const {
  std::vector<Prompt> prompts;
  if (request.variables) {
    prompts.push_back({.text = render(*request.variables, interrupt), .tokens = {}});
    check_bytes(request, prompts.back().text);
    prompts.back().tokens = tokenize(prompts.back().text, interrupt);
  }
  for (const auto& given : request.prompts) {
    if (const auto* text = std::get_if<std::string>(&given)) {
      check_bytes(request, *text);
      prompts.push_back({.text = *text, .tokens = tokenize(*text, interrupt)});
    } else {
      const auto& tokens = std::get<std::vector<int32_t>>(given);
      // Rows of the vocabulary behind the tokenizer's have no text.
      for (const int32_t token : tokens) {
        if (token < engine_.tokenizer->vocab_size()) continue;
        throw ApiError(400, fmt::format("token {} is not in the vocabulary", token), "prompt");
      }
      prompts.push_back({.text = request.echo ? engine_.tokenizer->decode(tokens) : std::string(),
                         .tokens = tokens});
    }
  }
  if (const auto most = request.truncate_prompt_tokens) {
    for (Prompt& prompt : prompts) {
      const auto size = static_cast<int64_t>(prompt.tokens.size());
      prompt.tokens.erase(prompt.tokens.begin(), prompt.tokens.end() - std::min(size, *most));
    }
  }
  return prompts;
}

// As vLLM words it, which clients look for.
void Preparer::set_length(const GenerationRequest& request, std::size_t prompt_tokens,
                          engine::SamplingParams& params) const {
  const int64_t room = max_model_len() - static_cast<int64_t>(prompt_tokens);
  const bool completion = request.dialect == Dialect::kCompletion;
  const int64_t fallback = completion ? std::min(room, kCompletionTokens) : room;
  params.max_tokens = request.max_tokens.value_or(fallback);
  if (room >= 1 && params.max_tokens <= room) return;
  const std::string length = request.max_tokens
                                 ? fmt::format("{} in the completion", *request.max_tokens)
                                 : "at least 1 in the completion";
  throw ApiError(
      400,
      fmt::format("This model's maximum context length is {} tokens. However, you "
                  "requested {} tokens in the {} and {}. Please reduce the length of "
                  "either.",
                  max_model_len(), prompt_tokens, completion ? "prompt" : "messages", length),
      completion ? "prompt" : "messages");
}

api::ChoiceFormat Preparer::format_of(const GenerationRequest& request,
                                      const std::string& prompt) const {
  api::ChoiceFormat format;
  format.plain = request.dialect == Dialect::kCompletion;
  format.include_reasoning = request.include_reasoning;
  format.parallel_tool_calls = request.parallel_tool_calls;
  format.stop = request.sampling.stop;
  format.stop_token_ids = request.sampling.stop_token_ids;
  format.end_token_ids = engine_.stop_token_ids;
  if (format.plain) return format;
  text::AssistantFormat& assistant = format.assistant;
  assistant.reasoning = options_.reasoning;
  assistant.prompt = text::reasoning_of_prompt(prompt);
  assistant.enable_thinking = request.enable_thinking;
  assistant.force_nonempty_content = request.force_nonempty_content;
  assistant.verbatim_content = request.shape != OutputShape::kText;
  assistant.id_seed = random_word();
  if (request.tool_mode != ToolMode::kNone && !assistant.verbatim_content) {
    assistant.tool_calls = options_.tool_calls;
    assistant.tools = text::ToolParameters(*request.tools);
  }
  for (const std::string_view end : {kThinkEnd, kToolCall}) {
    if (const auto id = engine_.tokenizer->find(end)) format.reasoning_ends.push_back(*id);
  }
  return format;
}

std::shared_ptr<const text::grammar::Grammar> Preparer::grammar_of(
    const GenerationRequest& request, const api::ChoiceFormat& format) const {
  using text::grammar::Grammar;
  text::grammar::FreePrefix prefix;
  const bool thinks = !format.plain && format.assistant.reasoning != text::ReasoningFormat::kNone &&
                      format.assistant.prompt == text::PromptReasoning::kOpen;
  if (thinks) prefix = {.until = std::string(kThinkEnd), .never = {std::string(kToolCall)}};
  if (request.shape == OutputShape::kJsonObject) return Grammar::json_object(prefix);
  if (request.shape == OutputShape::kJsonSchema) {
    return Grammar::json_schema(*request.schema, prefix, "response_format");
  }
  if (!request.forces_calls()) return nullptr;
  if (options_.tool_calls == text::ToolCallFormat::kNone) {
    throw ApiError(400, "this server runs without a tool call parser", "tool_choice");
  }
  return Grammar::tool_calls(
      *request.tools, {.name = request.tool_name, .parallel = request.parallel_tool_calls}, prefix);
}

std::shared_ptr<const text::grammar::TokenVocabulary> Preparer::vocabulary() const {
  std::call_once(vocabulary_made_, [&] {
    vocabulary_ = text::grammar::TokenVocabulary::of(*engine_.tokenizer, engine_.stop_token_ids);
  });
  return vocabulary_;
}

// Where turns begin is where other prompts are likely to part from this one.
std::vector<int64_t> Preparer::turn_ends(const std::vector<int32_t>& tokens) const {
  std::vector<int64_t> ends;
  const auto start = engine_.tokenizer->find(kTurnStart);
  if (!start) return ends;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    if (tokens[i] == *start) ends.push_back(static_cast<int64_t>(i));
  }
  return ends;
}

Prepared Preparer::prepare(GenerationRequest request, const text::Interrupt& interrupt) const {
  Prepared prepared;
  if (request.prompts.size() * static_cast<std::size_t>(request.n) >
      static_cast<std::size_t>(std::max(options_.max_choices, 256))) {
    throw ApiError(400, "too many prompts times n", "n");
  }
  std::vector<Prompt> prompts = prompts_of(request, interrupt);
  request.variables = nullptr;  // as large as the body
  prepared.format = format_of(request, prompts.front().text);
  const auto grammar = grammar_of(request, prepared.format);
  if (grammar && engine_.stop_token_ids.empty()) {
    throw ApiError(400, "the model has no stop token, which constrained output ends with",
                   "response_format");
  }
  engine::SamplingParams params = request.sampling;
  // Tags are special tokens, and the parser needs them.
  if (!prepared.format.plain) params.skip_special_tokens = false;
  for (Prompt& prompt : prompts) {
    set_length(request, prompt.tokens.size(), params);
    prepared.prompt_tokens += static_cast<int64_t>(prompt.tokens.size());
    if (request.echo) prepared.echoes.push_back(prompt.text);
    for (int i = 0; i < request.n; ++i) {
      engine::Submission submission;
      submission.request.prompt = prompt.tokens;
      submission.request.sampling = params;
      if (params.seed) submission.request.sampling.seed = *params.seed + static_cast<uint64_t>(i);
      submission.request.speculation = speculation_;
      if (grammar) {
        submission.request.filter = engine::make_grammar_filter(grammar, vocabulary());
      } else if (!request.allowed_token_ids.empty()) {
        submission.request.filter = engine::make_allowed_tokens(request.allowed_token_ids);
      }
      submission.priority = request.priority;
      submission.turn_ends = turn_ends(prompt.tokens);
      prepared.submissions.push_back(std::move(submission));
    }
  }
  prepared.request = std::move(request);
  return prepared;
}

}  // namespace levin::serve
