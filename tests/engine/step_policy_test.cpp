// The policy on simulated machines: how many drafts it settles on, what the search costs, how much
// of a prompt it reads beside running sequences.
#include "engine/step_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

namespace levin::engine {
namespace {

constexpr int kMost = 7;

struct Machine {
  const char* name;
  double fixed;     // seconds of a pass
  double row;       // and of each of its rows
  double sequence;  // and of each of its sequences
  double draft;     // of a proposal, and of each of its rows
  double draft_row;
  double noise;       // share of a pass's time, standard deviation
  double acceptance;  // of a draft when those before it are right
  int tile = 1;       // rows that cost as much as one

  double extend(int rows, int sequences) const {
    return fixed + row * ((rows + tile - 1) / tile * tile) + sequence * sequences;
  }
  double propose(int sequences) const { return draft + draft_row * sequences; }
  double round(int n, int k) const { return extend(n * (1 + k), n) + k * propose(n); }
  // Tokens per second of n sequences with k drafts each.
  double rate(int n, int k) const {
    double tokens = 1;
    double all_right = 1;
    for (int i = 0; i < k; ++i) tokens += all_right *= acceptance;
    return n * tokens / round(n, k);
  }
  int best(int n) const {
    int best = 0;
    for (int k = 1; k <= kMost; ++k) best = rate(n, k) > rate(n, best) ? k : best;
    return best;
  }
  double best_rate(int n) const { return rate(n, best(n)); }
};

struct Outcome {
  double tokens = 0;
  double seconds = 0;
  std::array<int, kMost + 1> rounds = {};  // by drafts
  double rate() const { return tokens / seconds; }
  int usual() const {
    return static_cast<int>(std::max_element(rounds.begin(), rounds.end()) - rounds.begin());
  }
};

// Runs `rounds` rounds of n sequences. Time is the machine's, not the clock's.
Outcome simulate(StepPolicy& policy, const Machine& machine, int n, int rounds,
                 std::mt19937& random) {
  std::normal_distribution<double> noise(1, machine.noise);
  std::uniform_real_distribution<double> uniform(0, 1);
  Outcome outcome;
  for (int round = 0; round < rounds; ++round) {
    const int k = policy.next({.adaptive = n, .most_drafts = kMost}).adaptive_drafts;
    EXPECT_GE(k, 0);
    EXPECT_LE(k, kMost);
    ++outcome.rounds[static_cast<std::size_t>(k)];
    RoundReport report;
    report.decoding = n;
    report.decode_rows = n * (1 + k);
    report.drafting = k > 0 ? n : 0;
    report.draft_steps = k;
    // Now and then the machine is busy with something else.
    const double hiccup = uniform(random) < 0.02 ? 5 : 1;
    report.extend_seconds =
        machine.extend(report.decode_rows, n) * hiccup * std::max(0.2, noise(random));
    report.draft_seconds = k * machine.propose(n) * std::max(0.2, noise(random));
    report.drafts_tried.resize(kMost);
    report.drafts_right.resize(kMost);
    for (int sequence = 0; sequence < n; ++sequence) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(k); ++i) {
        ++report.drafts_tried[i];
        if (uniform(random) >= machine.acceptance) break;
        ++report.drafts_right[i];
      }
    }
    policy.observe(report);
    // As expected, so that luck with drafts does not count.
    outcome.tokens += machine.rate(n, k) * machine.round(n, k);
    outcome.seconds += machine.round(n, k);
  }
  return outcome;
}

const Machine kMemoryBound = {"memory bound", 1e-3, 1e-5, 1e-5, 1e-4, 1e-6, 0.05, 0.8};
const Machine kFull = {"full", 1e-5, 1e-3, 1e-5, 1e-5, 2e-4, 0.05, 0.8};
const Machine kPoorDrafter = {"poor drafter", 1e-3, 1e-5, 1e-5, 1e-4, 1e-6, 0.05, 0.05};
const Machine kNeverRight = {"never right", 1e-3, 1e-4, 1e-4, 8e-4, 1e-5, 0.1, 0};
const Machine kTiny = {"tiny", 2e-4, 1e-4, 5e-5, 5e-5, 2e-5, 0.1, 0.7};
// 16 rows as 4 of each of 4 sequences, 2 of 8 and 1 of 16 cost as levin's own do on a CPU.
const Machine kStateBound = {"state bound", 1.9e-3, 4.7e-5, 2.1e-4, 1e-4, 1e-5, 0.1, 0.7};
const Machine kTiles = {"tiles", 5e-4, 5e-5, 1e-5, 3e-5, 2e-6, 0.05, 0.75, 16};
const std::array kMachines = {kMemoryBound, kFull,       kPoorDrafter, kNeverRight,
                              kTiny,        kStateBound, kTiles};

TEST(StepPolicy, ComesCloseToTheBestFixedNumberAtEveryBatchSize) {
  for (const Machine& machine : kMachines) {
    for (int n = 1; n <= 64; ++n) {
      std::mt19937 random(static_cast<unsigned>(n));
      StepPolicy policy({.most_drafts = kMost});
      simulate(policy, machine, n, 50, random);
      const double share = simulate(policy, machine, n, 500, random).rate() / machine.best_rate(n);
      EXPECT_GT(share, 0.95) << machine.name << ", " << n << " sequences";
    }
  }
}

TEST(StepPolicy, FindsTheBestNumberWithinAHundredRounds) {
  for (const Machine& machine : kMachines) {
    for (const int n : {1, 2, 3, 4, 8, 16, 32, 64}) {
      std::mt19937 random(static_cast<unsigned>(n));
      StepPolicy policy({.most_drafts = kMost});
      simulate(policy, machine, n, 100, random);
      const int usual = simulate(policy, machine, n, 50, random).usual();
      EXPECT_GT(machine.rate(n, usual), 0.94 * machine.best_rate(n))
          << machine.name << ", " << n << " sequences: " << usual << " drafts, not "
          << machine.best(n);
    }
  }
}

TEST(StepPolicy, LosesLittleToTrialsThatNeverPay) {
  for (const int n : {1, 4, 16}) {
    std::mt19937 random(3);
    StepPolicy policy({.most_drafts = kMost});
    const double first = simulate(policy, kNeverRight, n, 100, random).rate();
    EXPECT_GT(first, 0.80 * kNeverRight.rate(n, 0)) << n;  // the first looks are among these
    const double later = simulate(policy, kNeverRight, n, 1000, random).rate();
    EXPECT_GT(later, 0.98 * kNeverRight.rate(n, 0)) << n;
  }
}

TEST(StepPolicy, BelievesNothingOfManySequencesThatIsTrueOfFewOnly) {
  // Learnt with few and many drafts; then there are many at once.
  for (const Machine& machine : {kStateBound, kTiny, kMemoryBound}) {
    std::mt19937 random(4);
    StepPolicy policy({.most_drafts = kMost});
    for (const int n : {1, 2, 4, 8}) simulate(policy, machine, n, 60, random);
    const double share = simulate(policy, machine, 64, 100, random).rate() / machine.best_rate(64);
    EXPECT_GT(share, 0.93) << machine.name;
  }
}

TEST(StepPolicy, DraftsNothingWhenTheMachineIsFull) {
  std::mt19937 random(5);
  StepPolicy policy({.most_drafts = kMost});
  EXPECT_EQ(simulate(policy, kFull, 64, 200, random).usual(), 0);
}

TEST(StepPolicy, FollowsAChangeOfLoadAndOfText) {
  std::mt19937 random(2);
  StepPolicy policy({.most_drafts = kMost});
  // Four sequences are worth drafts on this machine, sixty-four are not.
  const Machine machine = {"", 1e-3, 6e-5, 1e-5, 1e-4, 1e-5, 0.05, 0.8};
  ASSERT_GT(machine.best_rate(2), 1.3 * machine.rate(2, 0));
  for (int turn = 0; turn < 3; ++turn) {
    for (const int n : {2, 64, 7, 33}) {
      simulate(policy, machine, n, 60, random);
      EXPECT_GT(simulate(policy, machine, n, 400, random).rate(), 0.95 * machine.best_rate(n)) << n;
    }
  }
  Machine other_text = machine;
  other_text.acceptance = 0.02;
  simulate(policy, other_text, 2, 200, random);
  EXPECT_GT(simulate(policy, other_text, 2, 500, random).rate(), 0.95 * other_text.best_rate(2));
  simulate(policy, machine, 2, 600, random);
  EXPECT_GT(simulate(policy, machine, 2, 500, random).rate(), 0.95 * machine.best_rate(2));
}

TEST(StepPolicy, NoticesThatDraftsHaveBecomeRight) {
  Machine machine = kNeverRight;
  machine.draft = 1e-4;
  Machine right = machine;
  right.acceptance = 0.8;
  for (const int n : {1, 4, 16}) {
    ASSERT_GT(right.best(n), 0);
    std::mt19937 random(6);
    StepPolicy policy({.most_drafts = kMost});
    simulate(policy, machine, n, 1500, random);
    EXPECT_EQ(simulate(policy, machine, n, 50, random).usual(), 0) << n;
    simulate(policy, right, n, 800, random);
    EXPECT_GT(simulate(policy, right, n, 300, random).rate(), 0.95 * right.best_rate(n)) << n;
  }
}

TEST(StepPolicy, RespectsTheMostOfTheRequests) {
  StepPolicy policy({.most_drafts = kMost});
  EXPECT_EQ(policy.next({.adaptive = 1, .most_drafts = 3}).adaptive_drafts, 3);
  EXPECT_EQ(policy.next({.adaptive = 1, .most_drafts = 0}).adaptive_drafts, 0);
  EXPECT_EQ(policy.next({.adaptive = 0, .most_drafts = 5}).adaptive_drafts, 0);
  StepPolicy none({.most_drafts = 0});
  EXPECT_EQ(none.next({.adaptive = 2, .most_drafts = 5}).adaptive_drafts, 0);
}

// Rounds of `n` sequences beside prompts that never end, of a machine with a plain price for
// prompts.
struct PromptOutcome {
  double tokens = 0;          // of prompts
  double seconds = 0;         // of rounds
  double decode_seconds = 0;  // of as many rounds without prompts
  double longest = 0;         // round
};

PromptOutcome read_prompts(StepPolicy& policy, const Machine& machine, int n, int prompts,
                           double chunk, double token, int rounds) {
  PromptOutcome outcome;
  for (int round = 0; round < rounds; ++round) {
    const RoundLimits limits = policy.next({.others = n, .other_rows = n, .prompts = prompts});
    const auto rows = static_cast<double>(limits.prompt_tokens);
    const double seconds =
        machine.extend(n, n) + (limits.prompt_tokens > 0 ? chunk + token * rows : 0);
    policy.observe({.decoding = n,
                    .decode_rows = n,
                    .prompt_rows = limits.prompt_tokens,
                    .extend_seconds = seconds});
    outcome.tokens += rows;
    outcome.seconds += seconds;
    outcome.decode_seconds += machine.extend(n, n);
    outcome.longest = std::max(outcome.longest, seconds);
  }
  return outcome;
}

TEST(StepPolicy, PromptsLeaveDecodingItsPace) {
  // Chunks without a price of their own, and with a high one.
  for (const double chunk : {0.0, 3e-4, 5e-3}) {
    for (const int n : {1, 4, 32}) {
      for (const int prompts : {1, 31}) {
        StepPolicy policy({.most_drafts = 0, .most_prompt_tokens = 512, .decode_slowdown = 2});
        EXPECT_EQ(policy.next({}).prompt_tokens, 512);  // nothing runs
        const double token = 1.7e-4;
        policy.observe({.prompt_rows = 64, .extend_seconds = chunk + 64 * token});
        for (int many = 1; many <= 64; many *= 2) {
          const double seconds = kStateBound.extend(many, many);
          for (int i = 0; i < 3; ++i) {
            policy.observe({.decoding = many, .decode_rows = many, .extend_seconds = seconds});
          }
        }
        read_prompts(policy, kStateBound, n, prompts, chunk, token, 50);
        const PromptOutcome outcome =
            read_prompts(policy, kStateBound, n, prompts, chunk, token, 200);
        EXPECT_LT(outcome.seconds, 2.1 * outcome.decode_seconds) << n << ", " << prompts;
        // What the time allows is used, and not for many dear chunks.
        EXPECT_GT(outcome.seconds, 1.5 * outcome.decode_seconds) << n << ", " << prompts;
        const double reading = outcome.seconds - 200 * kStateBound.extend(n, n);
        EXPECT_LT(reading / outcome.tokens, 2 * token) << n << ", " << prompts;
        // No chunk is larger than it takes.
        EXPECT_LT(outcome.longest, 2.2 * outcome.decode_seconds / 200 + 4 * chunk + 16 * token)
            << n << ", " << prompts << ", " << chunk;
      }
    }
  }
}

// 32 streams run when 16 prompts of 400 tokens come at once; each runs as soon as it has been read.
TEST(StepPolicy, StreamsKeepTheirPaceWhileManyPromptsAreRead) {
  for (const Machine& machine : kMachines) {
    StepPolicy policy({.most_drafts = 0, .most_prompt_tokens = 512, .decode_slowdown = 2});
    const double token = 1.7e-4;
    policy.observe({.prompt_rows = 64, .extend_seconds = 64 * token});
    int running = 32;
    for (int i = 0; i < 20; ++i) {
      (void)policy.next({.others = running, .other_rows = running});
      policy.observe({.decoding = running,
                      .decode_rows = running,
                      .extend_seconds = machine.extend(running, running)});
    }
    std::vector<int64_t> prompts(16, 400);
    double seconds = 0;
    double undisturbed = 0;
    double longest = 0;  // against the same round without prompts
    while (!prompts.empty()) {
      const RoundLimits limits = policy.next(
          {.others = running, .other_rows = running, .prompts = static_cast<int>(prompts.size())});
      const double alone = machine.extend(running, running);
      int64_t left = limits.prompt_tokens;
      const int decoding = running;
      while (left > 0 && !prompts.empty()) {
        const int64_t size = std::min(left, prompts.front());
        left -= size;
        prompts.front() -= size;
        if (prompts.front() > 0) continue;
        prompts.erase(prompts.begin());
        ++running;
      }
      const int64_t rows = limits.prompt_tokens - left;
      const double round = alone + token * static_cast<double>(rows);
      policy.observe({.decoding = decoding,
                      .decode_rows = decoding,
                      .prompt_rows = rows,
                      .extend_seconds = round});
      seconds += round;
      undisturbed += alone;
      longest = std::max(longest, round / alone);
      ASSERT_LT(seconds, 100) << machine.name << ": the prompts do not get on";
    }
    EXPECT_LT(seconds, 2.1 * undisturbed) << machine.name;
    EXPECT_GT(seconds, 1.5 * undisturbed) << machine.name;  // what is allowed is used
    // A round that reads at all reads what is worth it.
    EXPECT_LT(longest, 2.5 + 16 * token / machine.extend(32, 32)) << machine.name;
  }
}

TEST(StepPolicy, PromptsAlwaysGetOn) {
  for (const double slowdown : {1.0, 1.01}) {
    StepPolicy policy({.most_drafts = 0, .most_prompt_tokens = 512, .decode_slowdown = slowdown});
    EXPECT_GT(read_prompts(policy, kFull, 1, 1, 1e-2, 1e-4, 1000).tokens, 30);
  }
  StepPolicy unbounded({.most_prompt_tokens = 512, .decode_slowdown = 0});
  EXPECT_EQ(unbounded.next({.others = 4, .other_rows = 4, .prompts = 1}).prompt_tokens, 512);
}

}  // namespace
}  // namespace levin::engine
