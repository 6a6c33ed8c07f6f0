// What the engine does with a device that runs whole rounds: the same tokens as with rounds of the
// host, a round ahead of what it has read, whatever ends, begins or is cancelled meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "core/error.h"
#include "engine/scheduler.h"
#include "fake_device_rounds.h"

namespace levin::engine {
namespace {

using testing::device_engine;
using testing::device_of;
using testing::disturbed;
using testing::fake_engine;
using testing::fake_options;
using testing::random_logits;
using testing::run;
using testing::scripted;
using testing::Tokens;

constexpr int64_t kVocab = 24;

struct Pair {
  std::unique_ptr<Engine> host, device;
};

Pair engines(double wrong = 0.4, const runtime::Options& options = fake_options()) {
  const auto model = random_logits(4);
  const auto drafter = disturbed(model, 9, wrong);
  Pair pair;
  pair.host = fake_engine(kVocab, model, drafter, options);
  pair.device = device_engine(kVocab, model, drafter, options);
  return pair;
}

Request request_of(Tokens prompt, SamplingParams sampling, int k) {
  return {.prompt = std::move(prompt),
          .sampling = std::move(sampling),
          .speculation = {.num_speculative_tokens = k}};
}

TEST(DeviceRounds, SameTokensAndCountersForAllK) {
  const Pair pair = engines();
  const std::vector<SamplingParams> kinds = {
      {.temperature = 0}, {.temperature = 1}, {.temperature = 0.5, .top_k = 6, .top_p = 0.9}};
  for (SamplingParams sampling : kinds) {
    sampling.max_tokens = 40;
    for (uint64_t seed = 0; seed < 5; ++seed) {
      sampling.seed = seed;
      for (int k = 0; k <= 7; ++k) {
        const Request request = request_of({1, 2, static_cast<int32_t>(seed)}, sampling, k);
        const Result host = run(*pair.host, request);
        const Result device = run(*pair.device, request);
        ASSERT_EQ(device.tokens, host.tokens) << "k = " << k;
        EXPECT_EQ(device.finish_reason, host.finish_reason);
        EXPECT_EQ(device.speculation.num_drafts, host.speculation.num_drafts);
        EXPECT_EQ(device.speculation.num_accepted_tokens_per_pos,
                  host.speculation.num_accepted_tokens_per_pos);
      }
    }
  }
  EXPECT_GT(device_of(*pair.device).launches, 0);
  EXPECT_EQ(device_of(*pair.device).most_in_flight, 2);
}

TEST(DeviceRounds, StopTokensEndASequenceThatIsAhead) {
  const auto engine = device_engine(kVocab, scripted(1, {1, 2, 3, 4, 5, 6, 7, 8}),
                                    scripted(1, {1, 2, 3, 4, 5, 6, 7, 8}));
  for (int k = 0; k <= 3; ++k) {
    const Result result = run(
        *engine, request_of({0}, {.temperature = 0, .max_tokens = 50, .stop_token_ids = {6}}, k));
    EXPECT_EQ(result.tokens, (Tokens{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(result.finish_reason, FinishReason::kStop);
    EXPECT_EQ(result.stop_reason, "6");
  }
  // Rounds that were on their way when it stopped had nothing to say.
  EXPECT_EQ(device_of(*engine).in_flight(), 0);
}

// At the end of its tokens no round is launched that could not have any.
TEST(DeviceRounds, NoRoundBeyondTheLengthWithoutDrafts) {
  const Pair pair = engines();
  run(*pair.device, request_of({1}, {.temperature = 0, .max_tokens = 20}, 0));
  EXPECT_EQ(device_of(*pair.device).launches, 19);
  EXPECT_EQ(device_of(*pair.device).idle, 0);
}

TEST(DeviceRounds, EndOfTheContext) {
  runtime::Options options = fake_options();
  options.max_model_len = 40;
  const Pair pair = engines(0.1, options);
  for (int k = 0; k <= 7; ++k) {
    const Request request = request_of({3, 1}, {.temperature = 0, .max_tokens = 1000}, k);
    const Result device = run(*pair.device, request);
    EXPECT_EQ(device.tokens.size(), 38U);
    EXPECT_EQ(device.finish_reason, FinishReason::kLength);
    EXPECT_EQ(device.tokens, run(*pair.host, request).tokens);
  }
}

std::vector<Request> mixed_requests() {
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) {
    Tokens prompt(static_cast<std::size_t>(1 + (i * 37) % 150));
    std::iota(prompt.begin(), prompt.end(), i);
    for (int32_t& token : prompt) token %= 24;
    SamplingParams sampling = {.temperature = i % 3 == 0 ? 0.0 : 1.0,
                               .seed = static_cast<uint64_t>(i),
                               .max_tokens = 1 + (i * 11) % 40};
    if (i % 5 == 1) sampling.frequency_penalty = 0.5;
    if (i % 7 == 2) sampling.min_tokens = std::min<int64_t>(5, sampling.max_tokens);
    if (i % 4 == 1) sampling.stop_token_ids = {3, 11};
    requests.push_back(request_of(prompt, sampling, i % 8));
    requests.back().speculation.adaptive = i % 6 == 5;
  }
  return requests;
}

TEST(DeviceRounds, BatchesOfAllKinds) {
  const std::vector<Request> requests = mixed_requests();
  std::vector<Result> alone;
  alone.reserve(requests.size());
  const Pair single = engines();
  for (const Request& request : requests) alone.push_back(run(*single.host, request));
  for (const int slots : {1, 2, 5, 32}) {
    for (const int rows : {3, 8, 64}) {
      runtime::Options options = fake_options();
      options.max_num_seqs = slots;
      options.max_extend_tokens = rows;
      const Pair pair = engines(0.4, options);
      const auto together = generate(*pair.device, requests);
      for (std::size_t i = 0; i < requests.size(); ++i) {
        ASSERT_EQ(together[i].tokens, alone[i].tokens)
            << "request " << i << ", " << slots << " slots, " << rows << " rows";
        ASSERT_EQ(together[i].finish_reason, alone[i].finish_reason);
      }
      EXPECT_GT(device_of(*pair.device).launches, 0);
      EXPECT_EQ(device_of(*pair.device).in_flight(), 0);
    }
  }
}

TEST(DeviceRounds, CallbacksSeeEveryTokenInOrder) {
  const Pair pair = engines();
  Request request = request_of({5}, {.temperature = 0, .max_tokens = 60}, 3);
  Tokens seen;
  request.on_tokens = [&](std::span<const int32_t> tokens) {
    seen.insert(seen.end(), tokens.begin(), tokens.end());
    return true;
  };
  EXPECT_EQ(seen, Tokens{});
  EXPECT_EQ(run(*pair.device, request).tokens, seen);
}

// A request that is given up while rounds are on their way; then others in its slot.
TEST(DeviceRounds, CancelledWhileAhead) {
  runtime::Options options = fake_options();
  options.max_num_seqs = 1;
  const Pair pair = engines(0.4, options);
  const Request after = request_of({7, 7}, {.temperature = 1, .seed = 3, .max_tokens = 30}, 2);
  const Tokens expected = run(*pair.host, after).tokens;
  for (std::size_t limit = 1; limit < 12; ++limit) {
    Request request = request_of({5}, {.temperature = 0, .max_tokens = 60}, 3);
    std::size_t seen = 0;
    request.on_tokens = [&](std::span<const int32_t> tokens) {
      seen += tokens.size();
      return seen < limit;
    };
    const std::vector<Request> requests = {request, after};
    const auto results = generate(*pair.device, requests);
    EXPECT_EQ(results[0].finish_reason, FinishReason::kAbort);
    EXPECT_EQ(results[1].tokens, expected);
  }
  EXPECT_GT(device_of(*pair.device).dropped, 0);
}

// Requests come, are cancelled and overtake each other between steps, with and without a cache.
TEST(DeviceRounds, PreemptionKeepsTheTokens) {
  for (const int64_t cache : {int64_t{0}, int64_t{1} << 20}) {
    runtime::Options options = fake_options();
    options.max_num_seqs = 2;
    const Pair pair = engines(0.4, options);
    std::vector<Request> requests;
    std::vector<Tokens> expected;
    for (int i = 0; i < 12; ++i) {
      requests.push_back(request_of(
          {i, 2, 3}, {.temperature = i % 2 == 0 ? 0.0 : 1.0, .seed = 8, .max_tokens = 20 + i},
          i % 4));
      expected.push_back(run(*pair.host, requests.back()).tokens);
    }
    std::vector<Tokens> results(requests.size());
    int preemptions = 0;
    Scheduler scheduler(*pair.device, {.prefix_cache_bytes = cache, .decode_slowdown = 0});
    for (std::size_t i = 0; i < requests.size(); ++i) {
      scheduler.submit({.request = requests[i],
                        .priority = -static_cast<int>(i),
                        .on_finish = [&, i](Completion&& completion) {
                          results[i] = completion.result.tokens;
                          preemptions += completion.result.preemptions;
                        }});
      for (int step = 0; step < 4; ++step) scheduler.step();
    }
    while (scheduler.step()) {
    }
    EXPECT_EQ(results, expected);
    EXPECT_GT(preemptions, 5);
    EXPECT_GT(device_of(*pair.device).entered, 12);
  }
}

// What needs the host goes to the host, and no rounds are launched for it.
TEST(DeviceRounds, WhatADeviceCannotDo) {
  const Pair pair = engines();
  auto& device = device_of(*pair.device);
  std::vector<Request> requests = {
      request_of({1}, {.temperature = 1, .presence_penalty = 1, .seed = 1, .max_tokens = 20}, 2),
      request_of({1}, {.temperature = 0, .max_tokens = 20, .min_tokens = 20}, 2),
      request_of({1}, {.temperature = 0, .max_tokens = 20}, 2),
      request_of({1}, {.temperature = 0, .max_tokens = 20}, 2)};
  requests[2].speculation.device_rounds = false;
  requests[3].given_drafts = {1, 2, 3};
  for (const Request& request : requests) {
    EXPECT_EQ(run(*pair.device, request).tokens, run(*pair.host, request).tokens);
    EXPECT_EQ(device.launches, 0);
  }
  device.can_sample = false;
  run(*pair.device, request_of({1}, {.temperature = 1, .max_tokens = 20}, 2));
  EXPECT_EQ(device.launches, 0);
  run(*pair.device, request_of({1}, {.temperature = 0, .max_tokens = 20}, 2));
  EXPECT_GT(device.launches, 0);
}

// --- synthetic acceptance ---

TEST(SyntheticAcceptance, SameOnHostAndDeviceAndNearTheRates) {
  runtime::Options options = fake_options();
  options.max_model_len = 4000;
  const Pair pair = engines(1.0, options);  // a drafter that is never right
  Request request = request_of({1, 2}, {.temperature = 0, .seed = 7, .max_tokens = 3900}, 3);
  request.speculation.synthetic_acceptance_rates = {0.65, 0.6, 0.56};
  const Result host = run(*pair.host, request);
  const Result device = run(*pair.device, request);
  EXPECT_EQ(device.tokens, host.tokens);
  EXPECT_EQ(device.speculation.num_accepted_tokens, host.speculation.num_accepted_tokens);
  const auto& counts = device.speculation.num_accepted_tokens_per_pos;
  const auto drafts = static_cast<double>(device.speculation.num_drafts);
  EXPECT_NEAR(static_cast<double>(counts[0]) / drafts, 0.65, 0.05);
  EXPECT_NEAR(static_cast<double>(counts[1]) / drafts, 0.60, 0.05);
  EXPECT_NEAR(static_cast<double>(counts[2]) / drafts, 0.56, 0.05);
}

TEST(SyntheticAcceptance, AllAndNothing) {
  const Pair pair = engines(1.0);
  Request request = request_of({1, 2}, {.temperature = 0, .max_tokens = 61}, 2);
  request.speculation.synthetic_acceptance_rates = {1, 1};
  EXPECT_DOUBLE_EQ(run(*pair.device, request).speculation.mean_acceptance_length(), 3);
  request.speculation.synthetic_acceptance_rates = {0, 0};
  EXPECT_DOUBLE_EQ(run(*pair.device, request).speculation.mean_acceptance_length(), 1);
}

TEST(SyntheticAcceptance, RatesAreChecked) {
  const Pair pair = engines();
  for (const std::vector<double>& rates :
       {std::vector<double>{0.5}, {0.5, 0.6}, {1.2, 0.5}, {0.5, -0.1}, {0.5, 0.4, 0.3}}) {
    Request request = request_of({1, 2}, {.temperature = 0, .max_tokens = 10}, 2);
    request.speculation.synthetic_acceptance_rates = rates;
    EXPECT_THROW(run(*pair.device, request), Error) << rates.size();
  }
}

}  // namespace
}  // namespace levin::engine
