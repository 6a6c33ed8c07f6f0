// From what a client asks to what the engine runs: template, tokens, grammar, lengths.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/scheduler.h"
#include "serve/api/choice.h"
#include "serve/api/generation_request.h"
#include "serve/options.h"
#include "text/grammar/grammar.h"
#include "text/grammar/vocabulary.h"

namespace levin::serve {

struct Prepared {
  api::GenerationRequest request;
  api::ChoiceFormat format;
  // n for each prompt, next to each other. Without callbacks.
  std::vector<engine::Submission> submissions;
  int64_t prompt_tokens = 0;        // of all prompts
  std::vector<std::string> echoes;  // the prompts as text, when the request asks for them
};

class Preparer {
 public:
  // `engine` and `options` must outlive it.
  Preparer(const engine::Engine& engine, const ServeOptions& options,
           const engine::SpeculativeConfig& speculation);

  api::ModelFacts facts() const;
  // Throws ApiError, or Error for what the engine, the template or the grammar refuse. From any
  // thread.
  Prepared prepare(api::GenerationRequest request, const text::Interrupt& interrupt) const;
  // The prompt of a conversation.
  std::string render(const nlohmann::ordered_json& variables,
                     const text::Interrupt& interrupt) const;
  std::vector<int32_t> tokenize(const std::string& text, const text::Interrupt& interrupt) const;
  int64_t max_model_len() const { return engine_.runtime->options().max_model_len; }

 private:
  struct Prompt {
    std::string text;  // of a conversation, or when it is to be echoed
    std::vector<int32_t> tokens;
  };
  std::vector<Prompt> prompts_of(const api::GenerationRequest& request,
                                 const text::Interrupt& interrupt) const;
  // Throws ApiError for text that is too long whatever its tokens are, which takes no time.
  void check_bytes(const api::GenerationRequest& request, const std::string& text) const;
  void set_length(const api::GenerationRequest& request, std::size_t prompt_tokens,
                  engine::SamplingParams& params) const;
  api::ChoiceFormat format_of(const api::GenerationRequest& request,
                              const std::string& prompt) const;
  // A grammar for the output; none when anything goes.
  std::shared_ptr<const text::grammar::Grammar> grammar_of(const api::GenerationRequest& request,
                                                           const api::ChoiceFormat& format) const;
  std::shared_ptr<const text::grammar::TokenVocabulary> vocabulary() const;
  std::vector<int64_t> turn_ends(const std::vector<int32_t>& tokens) const;

  const engine::Engine& engine_;
  const ServeOptions& options_;
  engine::SpeculativeConfig speculation_;
  std::optional<std::size_t> longest_token_bytes_;
  mutable std::once_flag vocabulary_made_;
  mutable std::shared_ptr<const text::grammar::TokenVocabulary> vocabulary_;
};

}  // namespace levin::serve
