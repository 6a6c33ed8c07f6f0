// Chooses the next token from logits.
//
// Order of operations, as in vLLM (v1/sample/sampler.py): filter, bias, banned tokens, penalties,
// temperature, min-p, top-k, top-p, softmax, draw.
//  - top-k keeps every token whose logit is at least the k-th largest, ties included.
//  - top-p then keeps the most likely tokens until their share of what top-k left reaches p: a
//  token
//    stays when those before it have less than p. At least one stays. Among equal logits the lower
//    id comes first.
//  - The draw inverts the cumulative distribution in the order of ids at one uniform number.
// Cost is a few passes over the vocabulary; nothing is sorted but what is close to the cut.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling.h"
#include "engine/token_history.h"
#include "runtime/round_rules.h"

namespace levin::engine {

// Everything a choice depends on besides the logits.
struct Choice {
  const SamplingParams& params;
  const TokenHistory& history;
  std::span<const int32_t> banned = {};  // tokens that must not be chosen: stops below min_tokens
  // Tokens that may be chosen (token_filter.h); empty: all.
  std::span<const uint64_t> allowed = {};
  uint64_t seed = 0;
  int64_t position = 0;  // of the chosen token, counted from the start of the prompt
};

class Sampler {
 public:
  // The only place that allocates: about 24 bytes for each token of the vocabulary.
  explicit Sampler(int64_t vocab_size);

  // The next token. Throws Error when no logit is a number: a broken model must not go unnoticed.
  int32_t choose(std::span<const float> logits, const Choice& choice);

  // Fills `probabilities` [vocab] with the distribution that choose() draws from (one-hot when
  // greedy).
  void distribution(std::span<const float> logits, const Choice& choice,
                    std::span<double> probabilities);

 private:
  struct Candidate {
    float logit;
    float weight;
    int32_t token;
  };
  // Tokens above the cut take part; so do tokens at the cut up to an id.
  struct Cut {
    float logit;
    int32_t last_token;
  };

  std::span<const float> adjust(std::span<const float> logits, const Choice& choice);
  void set_weights(std::span<const float> logits, float maximum, double temperature);
  float kth_largest(std::span<const float> logits, int64_t k);
  Cut find_cut(std::span<const float> logits, float maximum, const SamplingParams& params);
  Cut top_p_cut(std::span<const float> logits, Cut cut, double top_p);
  double collect(std::span<const float> logits, Cut cut);
  int32_t draw_from_all(double u) const;
  int32_t draw(std::span<const float> logits, Cut cut, double u);

  std::vector<float> adjusted_;        // [vocab] logits after bans and penalties
  std::vector<float> weights_;         // [vocab] exp((logit - maximum) / temperature)
  std::vector<double> block_sums_;     // of weights_, in blocks
  std::vector<float> selection_;       // [vocab] work space of kth_largest
  std::vector<Candidate> candidates_;  // work space of top_p_cut and draw
};

// The parameters as device rounds take them; not the penalties.
runtime::SamplingRule sampling_rule(const SamplingParams& params, uint64_t seed);

// Index of the largest logit, the lowest among equals. Throws Error when none is a number.
int32_t greedy_token(std::span<const float> logits);

}  // namespace levin::engine
