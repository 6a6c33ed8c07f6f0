// What the next round should do, from what the last ones cost: how many tokens to draft, and how
// much of the waiting prompts to read beside running sequences. Knows nothing of sequences or
// devices; fed with the reports of rounds.
//
// A round that drafts k tokens for each of n sequences puts out
//   n * (1 + a1 + a1 a2 + ... + a1 ... ak)   tokens, with ai the share of i-th drafts that are
// right when those before them are, and costs
//   extend(n * (1 + k)) + k * draft(n)       seconds, both measured.
// The k with most tokens per second is chosen. When a machine is full, extend() grows with its rows
// and the choice falls to 0 by itself.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/round.h"

namespace levin::engine {

// Median of the last few samples, so that a hiccup of the machine changes nothing.
class RecentMedian {
 public:
  void add(double sample);
  bool empty() const { return count_ == 0; }
  double value() const { return value_; }

 private:
  std::array<double, 7> samples_ = {};
  std::size_t count_ = 0;
  std::size_t next_ = 0;
  double value_ = 0;
};

// Seconds of a pass as a function of its rows: medians of what was measured at about that many, and
// straight lines between. Optimistic where nothing was measured, so that a choice that looks good
// is tried and then known: no more than the largest measured beyond it, proportionally less below
// the smallest.
class PassCost {
 public:
  PassCost();
  void add(int64_t rows, double seconds);
  bool empty() const { return !measured_; }
  // 0 before the first sample.
  double seconds(double rows) const;

 private:
  struct Point {
    double rows = 0;
    RecentMedian seconds;
  };
  std::vector<Point> points_;  // exact up to 8 rows, then four an octave
  bool measured_ = false;
};

// Shares of right drafts by place, fading with time so that a change of text is noticed.
class Acceptance {
 public:
  explicit Acceptance(int most);
  void add(std::size_t place, int tried, int right);
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
  // A round that reads prompts beside running sequences takes at most this many times as long as
  // one without; 0: as long as it takes.
  double decode_slowdown = 2;
};

// What takes part in a round.
struct RoundDemand {
  int adaptive = 0;     // sequences that draft as many tokens as pay
  int most_drafts = 0;  // that one of them may draft
  int other_rows = 0;   // that other sequences decode
};

class StepPolicy {
 public:
  explicit StepPolicy(const StepPolicyOptions& options);

  RoundLimits next(const RoundDemand& demand);
  void observe(const RoundReport& report);

 private:
  double round_seconds(const RoundDemand& demand, int drafts) const;
  int best_drafts(const RoundDemand& demand, int most) const;
  int choose_drafts(const RoundDemand& demand);
  int64_t prompt_tokens(double decode_seconds) const;

  StepPolicyOptions options_;
  PassCost extend_cost_;  // of rounds without prompts
  PassCost draft_cost_;   // of one proposal for so many sequences
  RecentMedian prompt_row_seconds_;
  Acceptance acceptance_;
  int drafts_;             // the current choice
  int rounds_ = 0;         // since the last trial of another
  int trial_interval_;     // grows while trials change nothing
  bool try_more_ = false;  // than the current choice, next time
};

}  // namespace levin::engine
