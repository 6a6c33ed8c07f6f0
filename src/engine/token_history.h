// What the penalties look at: which tokens the prompt and the output so far contain, how often.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling.h"

namespace levin::engine {

class TokenHistory {
 public:
  // Takes memory only when `params` penalizes anything. Tokens beyond `capacity` distinct ones
  // would allocate.
  TokenHistory(const SamplingParams& params, int64_t vocab_size, int64_t capacity);

  void add_prompt(std::span<const int32_t> tokens);
  void add_output(int32_t token);

  bool penalizes() const { return penalizes_; }
  // Lowers (or raises) the logits [vocab] of tokens seen, as vLLM's apply_penalties does:
  // repetition for tokens of prompt and output, frequency and presence for those of the output.
  void apply(const SamplingParams& params, std::span<float> logits) const;

 private:
  void see(int32_t token);

  bool penalizes_;
  std::vector<int32_t> distinct_;        // in the order they appeared
  std::vector<uint8_t> seen_;            // [vocab]
  std::vector<uint32_t> output_counts_;  // [vocab]
};

}  // namespace levin::engine
