// The fixed prompts that every timing uses, so that figures of different days and machines are
// figures of the same work.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace levin::bench {

struct Prompt {
  std::string name;
  std::vector<int32_t> tokens;
};

struct Workload {
  std::vector<Prompt> prompts;
  std::string hash;               // of all token ids: equal hashes, equal work
  int64_t prompt_tokens() const;  // of all prompts together
};

// Prose and code of exactly `prompt_tokens` tokens (our own texts, repeated when too short) and,
// with a chat template, one question as a chat prompt of its own length. Without a tokenizer, one
// prompt of random ids.
Workload fixed_workload(const engine::Engine& engine, int64_t prompt_tokens);

// One prompt: the text of `file`, all of it. Throws Error when it is empty or not UTF-8 and when
// the engine has no tokenizer.
Workload file_workload(const engine::Engine& engine, const std::filesystem::path& file);

// Throws Error when a prompt and `output_tokens` after it do not fit the engine's sequences.
void require_fit(const Workload& workload, const engine::Engine& engine, int64_t output_tokens);

}  // namespace levin::bench
