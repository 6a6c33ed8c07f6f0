// How the next token is chosen from logits. The order of operations follows vLLM: penalties,
// temperature, min-p, top-k, top-p. Randomness is Philox keyed by (seed, position, purpose).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin::engine {

// Field names and meanings are vLLM's SamplingParams.
struct SamplingParams {
  double temperature = 1.0;  // below 1e-5: greedy
  int top_k = 0;             // 0 or -1: off
  double top_p = 1.0;
  double min_p = 0.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::optional<uint64_t> seed = std::nullopt;
  int64_t max_tokens = 16;
  int64_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids = {};  // besides the checkpoint's own
  std::vector<std::string> stop = {};
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;                 // in the text; ids are always all there
  std::vector<int32_t> shown_special_tokens = {};  // which are not skipped all the same
  // Tokens and what is added to their logits, after a filter and before bans and penalties.
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  // Report log probabilities, and those of this many likeliest tokens (logprobs.h). Unset: none.
  std::optional<int> logprobs = std::nullopt;

  bool greedy() const { return temperature < 1e-5; }
};

// Throws Error naming the first parameter that is out of range.
void validate(const SamplingParams& params);

}  // namespace levin::engine
