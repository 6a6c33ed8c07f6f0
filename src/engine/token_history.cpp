#include "engine/token_history.h"

#include <algorithm>

namespace levin::engine {

TokenHistory::TokenHistory(const SamplingParams& params, int64_t vocab_size, int64_t capacity)
    : penalizes_(params.presence_penalty != 0 || params.frequency_penalty != 0 ||
                 params.repetition_penalty != 1) {
  if (!penalizes_) return;
  const auto vocab = static_cast<std::size_t>(vocab_size);
  seen_.resize(vocab);
  output_counts_.resize(vocab);
  distinct_.reserve(std::min(vocab, static_cast<std::size_t>(capacity)));
}

void TokenHistory::see(int32_t token) {
  uint8_t& seen = seen_[static_cast<std::size_t>(token)];
  if (seen == 0) distinct_.push_back(token);
  seen = 1;
}

void TokenHistory::add_prompt(std::span<const int32_t> tokens) {
  if (!penalizes_) return;
  for (const int32_t token : tokens) see(token);
}

void TokenHistory::add_output(int32_t token) {
  if (!penalizes_) return;
  see(token);
  ++output_counts_[static_cast<std::size_t>(token)];
}

void TokenHistory::apply(const SamplingParams& params, std::span<float> logits) const {
  const auto repetition = static_cast<float>(params.repetition_penalty);
  const auto frequency = static_cast<float>(params.frequency_penalty);
  const auto presence = static_cast<float>(params.presence_penalty);
  for (const int32_t token : distinct_) {
    float& logit = logits[static_cast<std::size_t>(token)];
    const uint32_t count = output_counts_[static_cast<std::size_t>(token)];
    logit = logit > 0 ? logit / repetition : logit * repetition;
    logit -= frequency * static_cast<float>(count);
    if (count > 0) logit -= presence;
  }
}

}  // namespace levin::engine
