// What `generate` and `chat` share: from turns to a prompt, and from a result to what the user
// sees.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/generate.h"

namespace levin::cli {

// Loads the engine, logs what it runs on, and warns when a quantized draft head that `speculation`
// needs fails its self-test. Throws Error when the folder has no tokenizer, before weights are
// loaded and options.before_runtime is called.
std::unique_ptr<engine::Engine> load_generating_engine(
    const std::string& folder, const engine::LoadOptions& options,
    const engine::SpeculativeConfig& speculation);

// Throws Error when the folder has no chat template.
void require_chat_template(const engine::Engine& engine);

// Ids of a conversation, ready for the assistant's turn. `variables` is the chat template's context
// without add_generation_prompt. Throws Error when the folder has no chat template.
std::vector<int32_t> render_prompt(const engine::Engine& engine, nlohmann::ordered_json variables);

// Tokens that a sequence can hold: --max-model-len, or what the model was made for.
int64_t context_of(const engine::Engine& engine, const engine::LoadOptions& options);

// Time to first token, time per output token, tokens per second, acceptance: lines for a terminal.
std::string summary(const engine::Result& result, std::size_t prompt_tokens);

// The same and the text as an object.
nlohmann::ordered_json result_json(const engine::Result& result, std::size_t prompt_tokens);

}  // namespace levin::cli
