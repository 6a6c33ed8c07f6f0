// The policy on simulated machines: how many drafts it settles on, what the search costs, how much
// of a prompt it reads beside running sequences.
#include "engine/step_policy.h"

#include <gtest/gtest.h>

#include <random>

namespace levin::engine {
namespace {

constexpr int kMost = 7;

struct Machine {
  double fixed;  // seconds of a pass
  double row;    // and of each of its rows
  double draft;  // of a proposal, and of each of its rows
  double draft_row;
  double noise;       // share of a pass's time, standard deviation
  double acceptance;  // of a draft when those before it are right

  double extend(int rows) const { return fixed + row * rows; }
  double propose(int sequences) const { return draft + draft_row * sequences; }
  // Tokens per second of n sequences with k drafts each.
  double rate(int n, int k) const {
    double tokens = 1;
    double all_right = 1;
    for (int i = 0; i < k; ++i) tokens += all_right *= acceptance;
    return n * tokens / (extend(n * (1 + k)) + k * propose(n));
  }
  double best_rate(int n) const {
    double best = 0;
    for (int k = 0; k <= kMost; ++k) best = std::max(best, rate(n, k));
    return best;
  }
};

// Runs `rounds` rounds of n sequences; tokens per second.
double simulate(StepPolicy& policy, const Machine& machine, int n, int rounds,
                std::mt19937& random) {
  std::normal_distribution<double> noise(1, machine.noise);
  std::uniform_real_distribution<double> uniform(0, 1);
  double seconds = 0;
  double tokens = 0;
  for (int round = 0; round < rounds; ++round) {
    const int k = policy.next({.adaptive = n, .most_drafts = kMost}).adaptive_drafts;
    EXPECT_GE(k, 0);
    EXPECT_LE(k, kMost);
    RoundReport report;
    report.decoding = n;
    report.decode_rows = n * (1 + k);
    report.drafting = k > 0 ? n : 0;
    report.draft_steps = k;
    // Now and then the machine is busy with something else.
    const double hiccup = uniform(random) < 0.02 ? 5 : 1;
    report.extend_seconds =
        machine.extend(report.decode_rows) * hiccup * std::max(0.2, noise(random));
    report.draft_seconds = k * machine.propose(n) * std::max(0.2, noise(random));
    report.drafts_tried.resize(kMost);
    report.drafts_right.resize(kMost);
    for (int sequence = 0; sequence < n; ++sequence) {
      tokens += 1;
      for (std::size_t i = 0; i < static_cast<std::size_t>(k); ++i) {
        ++report.drafts_tried[i];
        if (uniform(random) >= machine.acceptance) break;
        ++report.drafts_right[i];
        tokens += 1;
      }
    }
    policy.observe(report);
    seconds += machine.extend(report.decode_rows) + k * machine.propose(n);
  }
  return tokens / seconds;
}

const Machine kMemoryBound = {1e-3, 1e-5, 1e-4, 1e-6, 0.05, 0.8};
const Machine kFull = {1e-5, 1e-3, 1e-5, 2e-4, 0.05, 0.8};
const Machine kPoorDrafter = {1e-3, 1e-5, 1e-4, 1e-6, 0.05, 0.05};
const Machine kTiny = {2e-4, 1e-4, 5e-5, 2e-5, 0.1, 0.7};

TEST(StepPolicy, ComesCloseToTheBestFixedNumber) {
  for (const Machine& machine : {kMemoryBound, kFull, kPoorDrafter, kTiny}) {
    for (const int n : {1, 2, 4, 8, 16, 32, 64}) {
      std::mt19937 random(1);
      StepPolicy policy({.most_drafts = kMost});
      simulate(policy, machine, n, 100, random);
      const double rate = simulate(policy, machine, n, 2000, random);
      EXPECT_GT(rate, 0.95 * machine.best_rate(n)) << n << " sequences";
      EXPECT_GT(rate, 0.97 * machine.rate(n, 0)) << n << " sequences, against no drafts";
    }
  }
}

TEST(StepPolicy, FollowsAChangeOfLoadAndOfText) {
  std::mt19937 random(2);
  StepPolicy policy({.most_drafts = kMost});
  // Four sequences are worth drafts on this machine, sixty-four are not.
  const Machine machine = {1e-3, 6e-5, 1e-4, 1e-5, 0.05, 0.8};
  ASSERT_GT(machine.best_rate(2), 1.3 * machine.rate(2, 0));
  for (int turn = 0; turn < 3; ++turn) {
    for (const int n : {2, 64, 7, 33}) {
      simulate(policy, machine, n, 60, random);
      EXPECT_GT(simulate(policy, machine, n, 400, random), 0.93 * machine.best_rate(n)) << n;
    }
  }
  Machine other_text = machine;
  other_text.acceptance = 0.02;
  simulate(policy, other_text, 2, 200, random);
  EXPECT_GT(simulate(policy, other_text, 2, 500, random), 0.95 * other_text.best_rate(2));
  simulate(policy, machine, 2, 600, random);
  EXPECT_GT(simulate(policy, machine, 2, 500, random), 0.95 * machine.best_rate(2));
}

TEST(StepPolicy, RespectsTheMostOfTheRequests) {
  StepPolicy policy({.most_drafts = kMost});
  EXPECT_EQ(policy.next({.adaptive = 1, .most_drafts = 3}).adaptive_drafts, 3);
  EXPECT_EQ(policy.next({.adaptive = 1, .most_drafts = 0}).adaptive_drafts, 0);
  EXPECT_EQ(policy.next({.adaptive = 0, .most_drafts = 5}).adaptive_drafts, 0);
  StepPolicy none({.most_drafts = 0});
  EXPECT_EQ(none.next({.adaptive = 2, .most_drafts = 5}).adaptive_drafts, 0);
}

TEST(StepPolicy, PromptsLeaveDecodingItsPace) {
  const double fixed = 2e-3;
  const double row = 1e-5;
  StepPolicy policy({.most_drafts = 0, .most_prompt_tokens = 512, .decode_slowdown = 2});
  EXPECT_EQ(policy.next({}).prompt_tokens, 512);  // nothing runs
  int64_t prompt = 0;
  for (int round = 0; round < 50; ++round) {
    const RoundLimits limits = policy.next({.other_rows = 4});
    const double decode = fixed + 4 * row;
    if (round % 2 == 0) {
      policy.observe({.decoding = 4, .decode_rows = 4, .extend_seconds = decode});
      continue;
    }
    prompt = limits.prompt_tokens;
    const double seconds = decode + 3e-4 + 1.2e-5 * static_cast<double>(prompt);
    EXPECT_LE(seconds, 2.1 * decode);
    policy.observe(
        {.decoding = 4, .decode_rows = 4, .prompt_rows = prompt, .extend_seconds = seconds});
  }
  // What the time allows, not only the least there is.
  EXPECT_GT(prompt, 100);
  StepPolicy unbounded({.most_prompt_tokens = 512, .decode_slowdown = 0});
  EXPECT_EQ(unbounded.next({.other_rows = 4}).prompt_tokens, 512);
}

TEST(PassCost, LinesBetweenMeasuredPoints) {
  PassCost cost;
  EXPECT_EQ(cost.seconds(3), 0);
  cost.add(4, 4.0);
  EXPECT_DOUBLE_EQ(cost.seconds(4), 4);
  EXPECT_DOUBLE_EQ(cost.seconds(40), 4);
  EXPECT_DOUBLE_EQ(cost.seconds(1), 1);
  cost.add(64, 10.0);
  EXPECT_DOUBLE_EQ(cost.seconds(34), 7);
  for (int i = 0; i < 3; ++i) cost.add(4, 4.0);
  cost.add(4, 400.0);  // a hiccup
  EXPECT_DOUBLE_EQ(cost.seconds(4), 4);
  for (int i = 0; i < 7; ++i) cost.add(4, 5.0);
  EXPECT_DOUBLE_EQ(cost.seconds(4), 5);
}

}  // namespace
}  // namespace levin::engine
