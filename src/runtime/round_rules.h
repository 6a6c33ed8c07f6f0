// What a generation round decides once the logits are there, as functions that the host and devices
// share: random numbers, how many tokens to draft, which drafts are accepted, when a sequence ends,
// and where that leaves its state. The rule of speculation is explained in engine/round.h.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace levin::runtime {

// What a random number is used for; part of the key, so that different uses are independent.
enum class Purpose : uint64_t { kToken = 0, kSyntheticAcceptance = 1 };

// Uniform in (0, 1] with 53 random bits, for the token at `position` (0 is the first of the
// prompt).
constexpr double uniform(uint64_t seed, int64_t position, Purpose purpose) {
  const auto words =
      philox(seed, static_cast<uint64_t>(position), 10, static_cast<uint64_t>(purpose));
  return uniform_open_closed(words[0], words[1]);
}

// How a token is chosen from logits: sampling parameters (engine/sampler.h) without penalties.
struct SamplingRule {
  bool greedy = true;
  float inverse_temperature = 1.0F;
  int32_t top_k = 0;          // 0: off
  double top_p = 1.0;         // 1: off
  bool min_p = false;         // whether there is one
  double min_p_offset = 0.0;  // temperature * log(min_p)
  uint64_t seed = 0;
};

// The least logit that min-p leaves.
constexpr float min_p_cut(double offset, float maximum) {
  const auto least = static_cast<float>(double{maximum} + offset);
  return least < maximum ? least : maximum;
}

inline constexpr int kMaxBlock = 8;  // tokens: the last one and its drafts
inline constexpr int kMaxRoundStops = 32;

enum class RoundEnd : int32_t {
  kGoesOn,
  kStop,       // the last token is one that ends it
  kLength,     // as many tokens as it may have
  kNotANumber  // no logit was finite
};

// A sequence between two rounds.
struct RoundSequence {
  int32_t active = 0;
  int32_t last_token = 0;  // chosen, not extended yet
  int32_t length = 0;      // tokens extended
  int32_t committed = 0;   // of those, in the stored Mamba state; the rest is logged
  int32_t parity = 0;      // which half of the log is current
  int32_t remaining = 0;   // tokens that may still be put out
  int32_t stop_count = 0;
  int32_t stops[kMaxRoundStops] = {};
  int32_t draft_vocab = 0;  // drafts are among the first so many tokens; 0: among all
  SamplingRule sampling;
  // Benchmarks only: draft i, when it is reached, is accepted with probability rates[i], whatever
  // the model says.
  int32_t synthetic = 0;
  double rates[kMaxBlock - 1] = {};
};

// Drafts beyond the last token that may be put out are useless.
constexpr int32_t drafts_of(const RoundSequence& s, int32_t most) {
  if (s.active == 0 || s.remaining <= 1) return 0;
  return s.remaining - 1 < most ? s.remaining - 1 : most;
}

// Where the chosen token after row `row` of a block will be.
constexpr int64_t position_after(const RoundSequence& s, int32_t row) {
  return int64_t{s.length} + 1 + row;
}

constexpr bool accepts_synthetic(const RoundSequence& s, int32_t row) {
  return uniform(s.sampling.seed, position_after(s, row), Purpose::kSyntheticAcceptance) <=
         s.rates[row];
}

// What a round put out for one sequence.
struct Block {
  int32_t drafts = 0;    // proposed
  int32_t accepted = 0;  // of those
  int32_t count = 0;     // tokens put out
  int32_t tokens[kMaxBlock] = {};
  RoundEnd end = RoundEnd::kGoesOn;
};

// Whether the sequence ends when `token` is put out as number `count` of its block. Stop tokens
// come before lengths, as in vLLM's check_stop.
constexpr RoundEnd end_after(const RoundSequence& s, int32_t token, int32_t count) {
  for (int32_t i = 0; i < s.stop_count; ++i) {
    if (s.stops[i] == token) return RoundEnd::kStop;
  }
  return count >= s.remaining ? RoundEnd::kLength : RoundEnd::kGoesOn;
}

// The block of the last token and `drafts` has been extended; chosen[i], [drafts + 1], is the token
// chosen from the logits of row i, negative when they are no numbers. Puts out tokens up to the
// first draft that is not accepted or the end, and moves the sequence behind them.
constexpr Block accept_block(RoundSequence& s, const int32_t* drafts, int32_t draft_count,
                             const int32_t* chosen) {
  Block block;
  block.drafts = draft_count;
  for (int32_t row = 0; row <= draft_count; ++row) {
    if (chosen[row] < 0) {
      block.end = RoundEnd::kNotANumber;
      break;
    }
    const bool accepted = row < draft_count && (s.synthetic != 0 ? accepts_synthetic(s, row)
                                                                 : chosen[row] == drafts[row]);
    const int32_t token = accepted ? drafts[row] : chosen[row];
    block.tokens[block.count++] = token;
    if (accepted) ++block.accepted;
    block.end = end_after(s, token, block.count);
    if (!accepted || block.end != RoundEnd::kGoesOn) break;
  }
  if (block.count > 0) s.last_token = block.tokens[block.count - 1];
  s.remaining -= block.count;
  if (block.end != RoundEnd::kGoesOn) s.active = 0;
  // The last token and the accepted drafts stay; the rest of the block never was.
  s.committed = s.length;
  s.length += block.count;
  s.parity ^= 1;
  return block;
}

}  // namespace levin::runtime
