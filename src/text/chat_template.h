// Turns -> prompt text, with the chat template of the checkpoint: chat_template.jinja, or the
// chat_template string of tokenizer_config.json. What of Jinja levin speaks is listed in
// jinja/ast.h (syntax) and in the tables behind jinja/builtins.h (filters, tests, functions,
// methods); a template that uses more is refused by the name of the construct. What is accepted
// renders as Python's Jinja2 renders it in transformers, but for three corners: `safe` marks
// nothing, a name that is assigned only later is looked up in the variables where Jinja already
// calls it undefined, and constant expressions are not folded.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "text/interrupt.h"

namespace levin::text {

class ChatTemplate {
 public:
  // Throws Error when the folder has no template, or one that does not parse. The special tokens of
  // tokenizer_config.json (bos_token, eos_token, ...) become variables of the template.
  static ChatTemplate load(const std::filesystem::path& folder);
  // A template from elsewhere, without special tokens.
  static ChatTemplate parse(std::string_view source, const std::string& where);
  // Another template for the same folder (--chat-template).
  static ChatTemplate parse(std::string_view source, const std::string& where,
                            const std::filesystem::path& folder);

  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // `variables` is the template's context: messages, tools, add_generation_prompt,
  // enable_thinking, ... JSON null is Jinja's none, absent is undefined, except that, as in
  // transformers, absent tools and documents are none and an absent add_generation_prompt is false.
  // Object keys are rendered in the order given. Errors raised by the template (raise_exception) or
  // by it meeting values it cannot handle are Errors with the template's line.
  std::string render(const nlohmann::ordered_json& variables,
                     const Interrupt& interrupt = {}) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace levin::text
