// The sampler against the formulas written down plainly, in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "core/error.h"
#include "core/fast_exp.h"
#include "engine/lanes.h"
#include "engine/random.h"
#include "engine/sampler.h"

namespace levin::engine {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<float> random_logits(std::size_t count, uint32_t seed, float spread = 3.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, spread);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

struct Case {
  SamplingParams params;
  std::vector<int32_t> prompt = {};
  std::vector<int32_t> output = {};
  std::vector<int32_t> banned = {};
};

TokenHistory history_of(const Case& c, std::size_t vocab) {
  TokenHistory history(c.params, static_cast<int64_t>(vocab), 100);
  history.add_prompt(c.prompt);
  for (const int32_t token : c.output) history.add_output(token);
  return history;
}

std::vector<double> sampled_distribution(const std::vector<float>& logits, const Case& c) {
  Sampler sampler(static_cast<int64_t>(logits.size()));
  std::vector<double> p(logits.size());
  const TokenHistory history = history_of(c, logits.size());
  sampler.distribution(logits, {.params = c.params, .history = history, .banned = c.banned}, p);
  return p;
}

// Penalties, temperature, min-p, top-k, top-p, softmax, step by step over sorted arrays.
std::vector<double> plain_distribution(const std::vector<float>& logits, const Case& c) {
  const SamplingParams& params = c.params;
  std::vector<double> x(logits.begin(), logits.end());
  for (const int32_t token : c.banned) x[static_cast<std::size_t>(token)] = -kInfinity;
  std::map<int32_t, int> counts;
  for (const int32_t token : c.prompt) counts[token] += 0;
  for (const int32_t token : c.output) counts[token] += 1;
  for (const auto& [token, count] : counts) {
    double& logit = x[static_cast<std::size_t>(token)];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit -= params.frequency_penalty * count;
    logit -= count > 0 ? params.presence_penalty : 0;
  }
  for (double& logit : x) logit /= params.temperature;

  auto softmax = [](const std::vector<double>& values) {
    const double maximum = *std::max_element(values.begin(), values.end());
    std::vector<double> p(values.size());
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = std::exp(values[i] - maximum);
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= sum;
    return p;
  };
  if (params.min_p > 0) {
    const auto p = softmax(x);
    const double most = *std::max_element(p.begin(), p.end());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (p[i] < params.min_p * most) x[i] = -kInfinity;
    }
  }
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < x.size()) {
    std::vector<double> sorted = x;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const double kth = sorted[static_cast<std::size_t>(params.top_k) - 1];
    for (double& logit : x) logit = logit < kth ? -kInfinity : logit;
  }
  if (params.top_p < 1) {
    // Ascending; among equals the higher id goes first.
    const auto p = softmax(x);
    std::vector<std::size_t> order(x.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return x[a] < x[b] || (x[a] == x[b] && a > b); });
    double cumulative = 0;
    for (std::size_t i = 0; i + 1 < order.size(); ++i) {
      cumulative += p[order[i]];
      if (cumulative <= 1 - params.top_p) x[order[i]] = -kInfinity;
    }
  }
  return softmax(x);
}

void expect_equal(const std::vector<double>& plain, const std::vector<double>& sampled) {
  ASSERT_EQ(plain.size(), sampled.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    ASSERT_NEAR(plain[i], sampled[i], 1e-6 * plain[i] + 1e-12) << "token " << i;
    ASSERT_EQ(plain[i] > 1e-30, sampled[i] > 1e-30) << "token " << i;
  }
}

TEST(Sampler, DistributionEqualsTheFormulas) {
  const std::vector<int32_t> prompt = {3, 5, 5, 9};
  const std::vector<int32_t> output = {5, 7, 7, 7};
  const std::vector<Case> cases = {
      {.params = {.temperature = 1}},
      {.params = {.temperature = 0.3}},
      {.params = {.temperature = 2.5}},
      {.params = {.top_k = 1}},
      {.params = {.top_k = 40}},
      {.params = {.top_k = 2000}},
      {.params = {.top_k = 100000}},
      {.params = {.top_k = -1}},
      {.params = {.top_p = 0.9}},
      {.params = {.top_p = 0.1}},
      {.params = {.top_p = 1e-9}},
      {.params = {.temperature = 30, .top_p = 0.7}},
      {.params = {.min_p = 0.05}},
      {.params = {.min_p = 1}},
      {.params = {.temperature = 0.7, .top_k = 50, .top_p = 0.8}},
      {.params = {.temperature = 1.3, .top_k = 200, .top_p = 0.95, .min_p = 0.01}},
      {.params = {.presence_penalty = 1.5}, .prompt = prompt, .output = output},
      {.params = {.frequency_penalty = -0.7}, .prompt = prompt, .output = output},
      {.params = {.repetition_penalty = 1.3}, .prompt = prompt, .output = output},
      {.params = {.repetition_penalty = 0.8}, .prompt = prompt, .output = output},
      {.params = {.temperature = 0.8,
                  .top_k = 20,
                  .top_p = 0.9,
                  .presence_penalty = 0.5,
                  .frequency_penalty = 0.3,
                  .repetition_penalty = 1.2},
       .prompt = prompt,
       .output = output,
       .banned = {0, 1, 2}},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (const std::size_t vocab : {10U, 257U, 5003U}) {
      SCOPED_TRACE(::testing::Message() << "case " << i << ", vocabulary " << vocab);
      const auto logits = random_logits(vocab, static_cast<uint32_t>(i));
      expect_equal(plain_distribution(logits, cases[i]), sampled_distribution(logits, cases[i]));
    }
  }
}

TEST(Sampler, PenaltiesSeeTheOutputAsItGrows) {
  const std::vector<float> logits = {1.0F, 0.9F, 0.0F};
  const SamplingParams params = {.temperature = 0, .frequency_penalty = 0.05};
  TokenHistory history(params, 3, 10);
  Sampler sampler(3);
  std::vector<int32_t> chosen;
  for (int i = 0; i < 6; ++i) {
    chosen.push_back(sampler.choose(logits, {.params = params, .history = history}));
    history.add_output(chosen.back());
  }
  // After two of the first, the second is as good (the lower id wins); from then on they alternate.
  EXPECT_EQ(chosen, (std::vector<int32_t>{0, 0, 0, 1, 0, 1}));
}

TEST(Sampler, TopKKeepsTies) {
  const std::vector<float> logits = {1, 3, 2, 2, 2, 0};
  const auto p = sampled_distribution(logits, {.params = {.top_k = 2}});
  EXPECT_EQ(p[0], 0);
  EXPECT_GT(p[1], p[2]);
  EXPECT_GT(p[2], 0);
  EXPECT_EQ(p[2], p[3]);
  EXPECT_EQ(p[3], p[4]);
  EXPECT_EQ(p[5], 0);
}

TEST(Sampler, TopKOfManyEqualLogits) {
  std::vector<float> logits(5000, 1.0F);
  logits[4321] = 2.0F;
  const auto p = sampled_distribution(logits, {.params = {.top_k = 7}});
  EXPECT_EQ(std::count_if(p.begin(), p.end(), [](double x) { return x > 0; }), 5000);
}

TEST(Sampler, TopPBreaksTiesByTokenId) {
  const std::vector<float> logits(8, 0.5F);
  const auto p = sampled_distribution(logits, {.params = {.top_p = 0.5}});
  const std::vector<double> expected = {0.25, 0.25, 0.25, 0.25, 0, 0, 0, 0};
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(p[i], expected[i], 1e-12);
}

TEST(Sampler, TopPAlwaysKeepsTheLikeliest) {
  const std::vector<float> logits = {0, 5, 0};
  const auto p = sampled_distribution(logits, {.params = {.top_p = 1e-6}});
  EXPECT_EQ(p, (std::vector<double>{0, 1, 0}));
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEquals) {
  std::vector<float> logits(1000, -1.0F);
  logits[500] = logits[700] = 4.0F;
  EXPECT_EQ(greedy_token(logits), 500);
  const SamplingParams nearly_zero = {.temperature = 1e-6};
  const TokenHistory history(nearly_zero, 1000, 1);
  Sampler sampler(1000);
  EXPECT_EQ(sampler.choose(logits, {.params = nearly_zero, .history = history}), 500);
}

TEST(Sampler, IgnoresNanAndRefusesNothingButNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> logits = {nan, 1.0F, nan, 2.0F, nan};
  EXPECT_EQ(greedy_token(logits), 3);
  const SamplingParams params;
  const TokenHistory history(params, 5, 1);
  Sampler sampler(5);
  for (int64_t position = 0; position < 50; ++position) {
    const int32_t token =
        sampler.choose(logits, {.params = params, .history = history, .position = position});
    EXPECT_TRUE(token == 1 || token == 3);
  }
  logits.assign(5, nan);
  EXPECT_THROW(greedy_token(logits), Error);
  EXPECT_THROW(sampler.choose(logits, {.params = params, .history = history}), Error);
  logits.assign(5, -std::numeric_limits<float>::infinity());
  EXPECT_THROW(greedy_token(logits), Error);
  logits[2] = std::numeric_limits<float>::infinity();
  EXPECT_THROW(greedy_token(logits), Error);
}

// Pearson's statistic of observed counts against expected probabilities, over outcomes expected at
// least five times; also its degrees of freedom.
std::pair<double, int> chi_square(const std::vector<int>& counts, const std::vector<double>& p) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  double statistic = 0;
  int degrees = -1;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (p[i] * total < 5) continue;
    const double difference = counts[i] - p[i] * total;
    statistic += difference * difference / (p[i] * total);
    ++degrees;
  }
  return {statistic, degrees};
}

// 5 standard deviations above the mean of the chi-square distribution.
double chi_square_limit(int degrees) {
  return degrees + 5 * std::sqrt(2.0 * degrees);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  const auto logits = random_logits(300, 77, 2.0F);
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.temperature = 0.8, .top_k = 30, .top_p = 0.95}}) {
    const auto p = sampled_distribution(logits, {.params = params});
    const TokenHistory history(params, 300, 1);
    Sampler sampler(300);
    std::vector<int> counts(300);
    for (int64_t position = 0; position < 40000; ++position) {
      const int32_t token = sampler.choose(
          logits, {.params = params, .history = history, .seed = 9, .position = position});
      ASSERT_GT(p[static_cast<std::size_t>(token)], 0);
      ++counts[static_cast<std::size_t>(token)];
    }
    const auto [statistic, degrees] = chi_square(counts, p);
    EXPECT_GT(degrees, 5);
    EXPECT_LT(statistic, chi_square_limit(degrees));
    // The test can tell: the same counts do not fit a slightly different temperature.
    SamplingParams other = params;
    other.temperature *= 1.1;
    const auto [wrong, wrong_degrees] =
        chi_square(counts, sampled_distribution(logits, {.params = other}));
    EXPECT_GT(wrong, chi_square_limit(wrong_degrees));
  }
}

TEST(Sampler, DependsOnSeedAndPositionOnly) {
  const auto logits = random_logits(2000, 5);
  const SamplingParams params = {.temperature = 2};
  const TokenHistory history(params, 2000, 1);
  Sampler one(2000);
  Sampler two(2000);
  auto choose = [&](Sampler& sampler, uint64_t seed, int64_t position) {
    return sampler.choose(
        logits, {.params = params, .history = history, .seed = seed, .position = position});
  };
  std::vector<int32_t> forward;
  std::vector<int32_t> backward(20);
  for (int64_t i = 0; i < 20; ++i) forward.push_back(choose(one, 1, i));
  for (int64_t i = 19; i >= 0; --i) backward[static_cast<std::size_t>(i)] = choose(two, 1, i);
  EXPECT_EQ(forward, backward);
  std::vector<int32_t> other;
  for (int64_t i = 0; i < 20; ++i) other.push_back(choose(one, 2, i));
  EXPECT_NE(forward, other);
}

TEST(Philox, UniformIsNeverZero) {
  double sum = 0;
  for (int64_t i = 0; i < 10000; ++i) {
    const double u = uniform(123, i, Purpose::kToken);
    ASSERT_GT(u, 0);
    ASSERT_LE(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
  EXPECT_EQ(uniform_open_closed(0, 0), 0x1p-53);
  EXPECT_EQ(uniform_open_closed(~0U, ~0U), 1);
}

TEST(SamplingParams, OutOfRangeIsNamed) {
  EXPECT_NO_THROW(validate(SamplingParams{}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<std::string, SamplingParams>> wrong = {
      {"temperature", {.temperature = -0.1}},
      {"temperature", {.temperature = nan}},
      {"temperature", {.temperature = kInfinity}},
      {"top_k", {.top_k = -2}},
      {"top_p", {.top_p = 0}},
      {"top_p", {.top_p = 1.01}},
      {"top_p", {.top_p = nan}},
      {"min_p", {.min_p = -0.01}},
      {"min_p", {.min_p = 1.5}},
      {"presence_penalty", {.presence_penalty = 2.1}},
      {"frequency_penalty", {.frequency_penalty = -2.1}},
      {"temperature", {.temperature = 1e300}},
      {"repetition_penalty", {.repetition_penalty = 0}},
      {"repetition_penalty", {.repetition_penalty = 1e-320}},
      {"repetition_penalty", {.repetition_penalty = 1e300}},
      {"max_tokens", {.max_tokens = 0}},
      {"min_tokens", {.min_tokens = -1}},
      {"min_tokens", {.max_tokens = 4, .min_tokens = 5}},
      {"stop", {.stop = {""}}},
  };
  for (const auto& [name, params] : wrong) {
    try {
      validate(params);
      FAIL() << name << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.parts().where, name);
      EXPECT_EQ(error.exit_code(), ExitCode::kBadInput);
    }
  }
}

// The exponential of one number, for devices, is that of four.
TEST(FastExp, OneIsTheSameAsFour) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform_float(-90.0F, 0.0F);
  std::vector<float> values = {0.0F,
                               -0.0F,
                               -87.0F,
                               std::nextafter(-87.0F, 0.0F),
                               -1e-30F,
                               -std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()};
  for (int i = 0; i < 200001; ++i) values.push_back(uniform_float(random));
  for (const float value : values) {
    const Quad four = fast_exp(Quad{value, value, value, value});
    ASSERT_EQ(std::bit_cast<uint32_t>(four[2]), std::bit_cast<uint32_t>(levin::fast_exp(value)))
        << value;
  }
}

}  // namespace
}  // namespace levin::engine
