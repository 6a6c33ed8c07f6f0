// How likely a token was, and which were likelier: of the model's own distribution, before bans,
// penalties, temperature and the rest (vLLM's "raw_logprobs"). Natural logarithms.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace levin::engine {

struct Logprob {
  int32_t token = 0;
  float logprob = 0;
};

struct TokenLogprobs {
  Logprob chosen;
  std::vector<Logprob> top;  // most likely first, the lower id first among equals
};

// Of `token` and the `count` likeliest tokens; `logits` [vocab], the largest of which is finite.
TokenLogprobs logprobs_of(std::span<const float> logits, int32_t token, int count);

}  // namespace levin::engine
