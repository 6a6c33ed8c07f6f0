// Sampling flags shared by the subcommands that generate text, named as in vLLM.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/sampling.h"

namespace levin::cli {

// Unset flags leave what generation_config.json says.
struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p;
  std::optional<int> top_k;
  std::optional<double> presence_penalty, frequency_penalty, repetition_penalty;
  int64_t max_tokens = 256;
  int64_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
};

void add_sampling_flags(CLI::App& command, SamplingFlags& flags);

// `defaults` with what the flags say on top; `seed` is --seed when given. Throws Error for values
// out of range.
engine::SamplingParams sampling_params(const SamplingFlags& flags, engine::SamplingParams defaults,
                                       std::optional<uint64_t> seed);

// Throws Error for what is wrong whatever the model: values out of range, and stop texts that are
// not UTF-8.
void check_sampling_flags(const SamplingFlags& flags);

// Says once how tokens are chosen, when neither --temperature nor generation_config.json decides.
void tell_sampling(const SamplingFlags& flags, const engine::Engine& engine);

}  // namespace levin::cli
