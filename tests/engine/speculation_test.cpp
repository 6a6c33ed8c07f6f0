// Speculation changes how many tokens a round puts out and nothing else: on a fake model, whose
// draft head is right always, sometimes or never.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/error.h"
#include "fake_runtime.h"

namespace levin::engine {
namespace {

using testing::disturbed;
using testing::fake_engine;
using testing::fake_options;
using testing::FakeRuntime;
using testing::random_logits;
using testing::run;
using testing::scripted;
using testing::Tokens;

constexpr int64_t kVocab = 24;
constexpr uint32_t kModel = 4;

Request greedy_request(Tokens prompt, int64_t max_tokens, int k) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = 0, .max_tokens = max_tokens},
          .speculation = {.num_speculative_tokens = k}};
}

struct Drafter {
  const char* name;
  double wrong;  // share of disturbed drafts
};

class Speculation : public ::testing::TestWithParam<Drafter> {
 protected:
  std::unique_ptr<Engine> engine(const runtime::Options& options = fake_options()) const {
    const auto model = random_logits(kModel);
    return fake_engine(kVocab, model, disturbed(model, 9, GetParam().wrong), options);
  }
};

TEST_P(Speculation, GreedyTokensAreTheSameForAllK) {
  const auto engine = this->engine();
  for (int32_t prompt = 0; prompt < 40; ++prompt) {
    const Tokens tokens = {prompt % 24, (7 * prompt) % 24, prompt % 5};
    const Result plain = run(*engine, greedy_request(tokens, 30, 0));
    ASSERT_EQ(plain.tokens.size(), 30U);
    EXPECT_EQ(plain.speculation.num_drafts, 0);
    for (int k = 1; k <= 7; ++k) {
      const Result result = run(*engine, greedy_request(tokens, 30, k));
      ASSERT_EQ(result.tokens, plain.tokens) << "k = " << k;
    }
  }
}

TEST_P(Speculation, SampledTokensAreTheSameForAllK) {
  const auto engine = this->engine();
  const std::vector<SamplingParams> kinds = {
      {.temperature = 1},
      {.temperature = 0.6, .top_k = 5},
      {.temperature = 1.5, .top_p = 0.9, .min_p = 0.02},
      {.temperature = 1,
       .presence_penalty = 0.8,
       .frequency_penalty = 0.4,
       .repetition_penalty = 1.3},
  };
  for (SamplingParams sampling : kinds) {
    sampling.max_tokens = 60;
    for (uint64_t seed = 0; seed < 10; ++seed) {
      sampling.seed = seed;
      Request request = {.prompt = {1, 2, 3}, .sampling = sampling};
      const Result plain = run(*engine, request);
      for (int k = 1; k <= 7; ++k) {
        request.speculation.num_speculative_tokens = k;
        ASSERT_EQ(run(*engine, request).tokens, plain.tokens) << "k = " << k;
      }
    }
  }
}

// Requests of every kind in the same batch give what each gives alone.
TEST_P(Speculation, BatchingChangesNothing) {
  std::vector<Request> requests;
  for (int i = 0; i < 23; ++i) {
    Tokens prompt(static_cast<std::size_t>(1 + (i * 37) % 150));
    std::iota(prompt.begin(), prompt.end(), i);
    for (int32_t& token : prompt) token %= 24;
    requests.push_back({.prompt = prompt,
                        .sampling = {.temperature = i % 3 == 0 ? 0.0 : 1.0,
                                     .seed = static_cast<uint64_t>(i),
                                     .max_tokens = 1 + (i * 11) % 40},
                        .speculation = {.num_speculative_tokens = i % 8}});
  }
  std::vector<Result> alone;
  const auto single = this->engine();
  for (const Request& request : requests) alone.push_back(run(*single, request));
  for (const int slots : {1, 2, 5, 32}) {
    for (const int rows : {3, 8, 64}) {
      runtime::Options options = fake_options();
      options.max_num_seqs = slots;
      options.max_extend_tokens = rows;
      const auto engine = this->engine(options);
      const auto together = generate(*engine, requests);
      ASSERT_EQ(together.size(), requests.size());
      for (std::size_t i = 0; i < requests.size(); ++i) {
        ASSERT_EQ(together[i].tokens, alone[i].tokens) << "request " << i;
        ASSERT_EQ(together[i].finish_reason, alone[i].finish_reason);
      }
      const auto& fake = static_cast<const FakeRuntime&>(*engine->runtime);
      EXPECT_LE(fake.longest_extend, static_cast<std::size_t>(rows));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Drafters, Speculation,
                         ::testing::Values(Drafter{"Right", 0.0}, Drafter{"Mixed", 0.4},
                                           Drafter{"Wrong", 1.0}),
                         [](const auto& drafter) { return std::string(drafter.param.name); });

// --- the distribution of sampled speculation ---

constexpr int kSmallVocab = 5;

std::vector<double> probabilities(const FakeRuntime::Logits& model, const Tokens& history) {
  std::vector<float> logits(kSmallVocab);
  model(history, logits);
  std::vector<double> p;
  for (const float logit : logits) p.push_back(std::exp(double{logit}));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

// Probability of each sequence of four tokens after `prompt`, indexed in base kSmallVocab.
std::vector<double> exact_joint(const FakeRuntime::Logits& model, const Tokens& prompt) {
  std::vector<double> joint;
  for (int code = 0; code < kSmallVocab * kSmallVocab * kSmallVocab * kSmallVocab; ++code) {
    Tokens history = prompt;
    double probability = 1;
    for (int divisor = 125; divisor > 0; divisor /= 5) {
      const int32_t token = code / divisor % kSmallVocab;
      probability *= probabilities(model, history)[static_cast<std::size_t>(token)];
      history.push_back(token);
    }
    joint.push_back(probability);
  }
  return joint;
}

std::size_t code_of(const Tokens& tokens) {
  std::size_t code = 0;
  for (const int32_t token : tokens) code = code * kSmallVocab + static_cast<std::size_t>(token);
  return code;
}

// How many standard deviations Pearson's statistic lies above its mean.
double chi_square_excess(const std::vector<int>& counts, const std::vector<double>& expected) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  double statistic = 0;
  double degrees = -1;
  double rest_count = total;
  double rest_expected = total;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i] * total;
    if (e < 8) continue;
    statistic += (counts[i] - e) * (counts[i] - e) / e;
    degrees += 1;
    rest_count -= counts[i];
    rest_expected -= e;
  }
  if (rest_expected > 8) {
    statistic += (rest_count - rest_expected) * (rest_count - rest_expected) / rest_expected;
    degrees += 1;
  }
  return (statistic - degrees) / std::sqrt(2 * degrees);
}

TEST(SpeculationDistribution, EqualsTheModelsOwn) {
  const auto model = random_logits(21, 1.0F);
  const Tokens prompt = {1, 2};
  const auto exact = exact_joint(model, prompt);
  for (const double wrong : {0.0, 0.5, 1.0}) {
    runtime::Options options = fake_options();
    options.max_num_seqs = 16;
    const auto engine = fake_engine(kSmallVocab, model, disturbed(model, 3, wrong), options);
    std::vector<Request> requests(30000);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      requests[i] = {.prompt = prompt,
                     .sampling = {.seed = i, .max_tokens = 4},
                     .speculation = {.num_speculative_tokens = 3}};
    }
    std::vector<int> counts(exact.size());
    SpeculationStats stats;
    for (const Result& result : generate(*engine, requests)) {
      ++counts[code_of(result.tokens)];
      stats.add(result.speculation);
    }
    EXPECT_GT(stats.num_accepted_tokens, 1000);
    EXPECT_LT(stats.num_accepted_tokens, stats.num_draft_tokens);
    EXPECT_LT(chi_square_excess(counts, exact), 5);
  }
}

// The test above would notice the two classic mistakes, made here by hand: drawing the token after
// a rejection from all of p, and accepting drafts somewhat too gladly.
TEST(SpeculationDistribution, MistakesWouldBeNoticed) {
  const auto model = random_logits(21, 1.0F);
  const auto drafter = disturbed(model, 3, 0.5);
  const Tokens prompt = {1, 2};
  const auto exact = exact_joint(model, prompt);
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> uniform(0, 1);
  auto simulate = [&](double gladness, bool remove_draft) {
    std::vector<int> counts(exact.size());
    for (int trial = 0; trial < 30000; ++trial) {
      Tokens history = prompt;
      for (int i = 0; i < 4; ++i) {
        auto p = probabilities(model, history);
        std::vector<float> draft_logits(kSmallVocab);
        drafter(history, draft_logits);
        const auto draft = static_cast<std::size_t>(
            std::max_element(draft_logits.begin(), draft_logits.end()) - draft_logits.begin());
        if (uniform(random) <= p[draft] * gladness) {
          history.push_back(static_cast<int32_t>(draft));
          continue;
        }
        if (remove_draft) p[draft] = 0;
        std::discrete_distribution<int32_t> rest(p.begin(), p.end());
        history.push_back(rest(random));
      }
      ++counts[code_of(Tokens(history.begin() + 2, history.end()))];
    }
    return chi_square_excess(counts, exact);
  };
  EXPECT_LT(simulate(1.0, true), 5);  // the right rule, as a control
  EXPECT_GT(simulate(1.0, false), 20);
  EXPECT_GT(simulate(1.1, true), 10);
}

// --- counters ---

TEST(SpeculationCounters, PerfectDrafter) {
  const auto model = random_logits(kModel);
  const auto engine = fake_engine(kVocab, model, model);
  // The prompt's own token, then rounds of 1 + 3: 21 tokens.
  const Result result = run(*engine, greedy_request({1, 2, 3}, 21, 3));
  EXPECT_EQ(result.speculation.num_drafts, 5);
  EXPECT_EQ(result.speculation.num_draft_tokens, 15);
  EXPECT_EQ(result.speculation.num_accepted_tokens, 15);
  EXPECT_EQ(result.speculation.num_accepted_tokens_per_pos, (std::vector<int64_t>{5, 5, 5}));
  EXPECT_DOUBLE_EQ(result.speculation.mean_acceptance_length(), 4);
}

TEST(SpeculationCounters, PartlyRightDrafts) {
  // The model counts up; the drafter does too, but never says 7.
  const auto count_up = [](bool skip_seven) {
    return [=](std::span<const int32_t> history, std::span<float> logits) {
      std::fill(logits.begin(), logits.end(), 0.0F);
      int32_t next = (history.back() + 1) % 20;
      if (skip_seven && next == 7) next = 0;
      logits[static_cast<std::size_t>(next)] = 1.0F;
    };
  };
  const auto engine = fake_engine(20, count_up(false), count_up(true));
  // 1 | 2 3 4 5 | 6 7 (draft 6 right, 0 wrong) | 8 9 10 11
  const Result result = run(*engine, greedy_request({0}, 11, 3));
  EXPECT_EQ(result.tokens, (Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(result.speculation.num_drafts, 3);
  EXPECT_EQ(result.speculation.num_draft_tokens, 9);
  EXPECT_EQ(result.speculation.num_accepted_tokens, 7);
  EXPECT_EQ(result.speculation.num_accepted_tokens_per_pos, (std::vector<int64_t>{3, 2, 2}));
}

TEST(SpeculationCounters, NothingDraftedCountsAsOne) {
  EXPECT_DOUBLE_EQ(SpeculationStats{}.mean_acceptance_length(), 1);
  SpeculationStats sum;
  sum.add({.num_drafts = 2,
           .num_draft_tokens = 2,
           .num_accepted_tokens = 1,
           .num_accepted_tokens_per_pos = {1}});
  sum.add({.num_drafts = 1,
           .num_draft_tokens = 2,
           .num_accepted_tokens = 2,
           .num_accepted_tokens_per_pos = {1, 1}});
  EXPECT_EQ(sum.num_accepted_tokens_per_pos, (std::vector<int64_t>{2, 1}));
  EXPECT_DOUBLE_EQ(sum.mean_acceptance_length(), 2);
}

// --- drafts from outside ---

TEST(GivenDrafts, GarbageChangesNothing) {
  const auto model = random_logits(kModel);
  const auto engine = fake_engine(kVocab, model, nullptr);
  const Result plain = run(*engine, greedy_request({3, 1}, 40, 0));
  std::mt19937 random(1);
  for (int trial = 0; trial < 50; ++trial) {
    Request request = greedy_request({3, 1}, 40, trial % 8);
    request.given_drafts = plain.tokens;
    request.given_drafts.resize(random() % 60, 5);
    // Wrong from a random point on, or in one place only.
    for (std::size_t i = random() % 40; i < request.given_drafts.size(); ++i) {
      request.given_drafts[i] = static_cast<int32_t>(random() % kVocab);
      if (trial % 2 == 0) break;
    }
    const Result result = run(*engine, request);
    ASSERT_EQ(result.tokens, plain.tokens);
    ASSERT_EQ(result.finish_reason, plain.finish_reason);
  }
}

TEST(GivenDrafts, NoneAfterTheFirstDifference) {
  const auto model = random_logits(kModel);
  const auto engine = fake_engine(kVocab, model, nullptr);
  const Result plain = run(*engine, greedy_request({3, 1}, 40, 0));
  Request request = greedy_request({3, 1}, 40, 0);
  request.given_drafts = plain.tokens;
  request.given_drafts[4] = (request.given_drafts[4] + 1) % 24;
  const Result result = run(*engine, request);
  EXPECT_EQ(result.tokens, plain.tokens);
  EXPECT_EQ(result.speculation.num_drafts, 1);
  EXPECT_EQ(result.speculation.num_accepted_tokens, 3);
}

TEST(GivenDrafts, TheRightAnswerTakesFewRounds) {
  const auto model = random_logits(kModel);
  const auto engine = fake_engine(kVocab, model, nullptr);
  const Result plain = run(*engine, greedy_request({3, 1}, 33, 0));
  auto& fake = static_cast<FakeRuntime&>(*engine->runtime);
  Request request = greedy_request({3, 1}, 33, 0);
  request.given_drafts = plain.tokens;
  fake.extends = 0;
  const Result result = run(*engine, request);
  EXPECT_EQ(result.tokens, plain.tokens);
  // One for the prompt, then blocks of 1 + 7 for the 32 others.
  EXPECT_EQ(fake.extends, 5);
  EXPECT_EQ(result.speculation.num_accepted_tokens, 28);
}

}  // namespace
}  // namespace levin::engine
