// What the next round should do, from what the last ones cost: how many tokens to draft, and how
// much of the waiting prompts to read beside running sequences. Knows nothing of sequences or
// devices; fed with the reports of rounds.
//
// A round that drafts k tokens for each of n sequences puts out
//   n * (1 + a1 + a1 a2 + ... + a1 ... ak)   tokens, with ai the share of i-th drafts that are
// right when those before them are, and costs
//   cost(n * (1 + k) rows, n sequences)      seconds, drafting included (pass_cost.h).
// The k with most tokens per second is chosen. When a machine is full, the cost grows with the rows
// and the choice falls to 0 by itself.
//
// Other numbers are tried now and then, for their costs and shares change. What a trial is expected
// to lose is saved for first, at most 2 % of the time that rounds take, and half of that after each
// trial that changed nothing, down to 0.25 %. Two things come on top of that, once: the first five
// rounds are trials, and so that a hiccup is not believed for long, what was measured less than
// four times with about as many sequences counts in proportion.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/pass_cost.h"
#include "engine/round.h"

namespace levin::engine {

// Shares of right drafts by place, fading with tries and rounds so that a change of text is
// noticed.
class Acceptance {
 public:
  explicit Acceptance(int most);
  // What a round has found out about a place, maybe nothing.
  void add(std::size_t place, int tried, int right);
  // Of drafts in this place, when those before are right.
  double share(std::size_t place) const;
  // Tokens that a sequence can expect from a round with `drafts` drafts.
  double expected_tokens(int drafts) const;

 private:
  struct Place {
    double tried = 0;
    double right = 0;
  };
  std::vector<Place> places_;
};

struct StepPolicyOptions {
  int most_drafts = 0;
  int64_t fewest_prompt_tokens = 1;  // that a prompt can advance by
  int64_t most_prompt_tokens = 512;
  // While prompts are read beside running sequences, however many, rounds take on average at most
  // this many times as long as without. 0: no matter how long.
  double decode_slowdown = 2;
};

// What takes part in a round.
struct RoundDemand {
  int adaptive = 0;     // sequences that draft as many tokens as pay
  int most_drafts = 0;  // that one of them may draft
  int others = 0;       // other sequences that decode
  int other_rows = 0;   // and their rows
  int prompts = 0;      // sequences that read theirs

  int decoding() const { return adaptive + others; }
  int rows(int drafts) const { return adaptive * (1 + drafts) + other_rows; }
};

class StepPolicy {
 public:
  explicit StepPolicy(const StepPolicyOptions& options);

  RoundLimits next(const RoundDemand& demand);
  void observe(const RoundReport& report);

 private:
  int most_drafts(const RoundDemand& demand) const;
  double tokens(const RoundDemand& demand, int drafts) const;
  int best_drafts(const RoundDemand& demand, const PassCost::Near& cost) const;
  int choose_drafts(const RoundDemand& demand, const PassCost::Near& cost);
  int trial(const RoundDemand& demand, const PassCost::Near& cost);
  void change_choice(int drafts);
  int64_t prompt_tokens(const RoundDemand& demand, int drafts, const PassCost::Near& cost);

  StepPolicyOptions options_;
  PassCost cost_;  // of rounds, without the prompts
  PromptCost prompt_cost_;
  Acceptance acceptance_;
  int drafts_;                      // the current choice
  int64_t rounds_ = 0;              // that had a choice
  int64_t last_trial_ = 0;          // its number
  std::vector<int64_t> last_used_;  // number of the last round with so many drafts
  double saved_ = 0;                // seconds that trials may lose
  double saving_;                   // share of the time that is saved for them
  double spare_ = 0;                // seconds that waiting prompts may take
};

}  // namespace levin::engine
