// Rounds of the device (runtime/round.h) put out what rounds of the host do, token for token, on
// the bundled model and on random ones with vocabularies of awkward sizes.
#include <fmt/format.h>

#include "core/error.h"
#include "cuda_device.h"
#include "cuda_engine.h"
#include "engine/scheduler.h"
#include "runtime/round.h"

namespace levin::engine {
namespace {

using testing::engine_with;
using testing::random_model;
using testing::tiny_cuda_engine;

Request request_of(std::vector<int32_t> prompt, const SamplingParams& sampling, int k,
                   bool device) {
  return {.prompt = std::move(prompt),
          .sampling = sampling,
          .speculation = {.num_speculative_tokens = k, .device_rounds = device}};
}

Result run(Engine& engine, const Request& request) {
  return std::move(generate(engine, {&request, 1}).front());
}

std::vector<int32_t> prompt_of(const Engine& engine, int number) {
  static const char* const kTexts[] = {"Once upon a time there was a little",
                                       "def fibonacci(n):\n    if n <",
                                       "The capital of France is",
                                       "It was the best of times, it was the worst of",
                                       "1, 2, 3, 4, 5,",
                                       "Dear Sir or Madam,\n\nI am writing",
                                       "class Stack:\n    def push",
                                       "Question: how many legs has a spider?\nAnswer:"};
  if (engine.tokenizer) return engine.tokenizer->encode(kTexts[number % 8]);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 12; ++i) {
    tokens.push_back(
        static_cast<int32_t>((7 * number + 104729 * i + 5) % engine.model->config.vocab_size));
  }
  return tokens;
}

// Every way to cut, alone and together.
std::vector<SamplingParams> samplings() {
  std::vector<SamplingParams> list = {
      {.temperature = 1.0},
      {.temperature = 0.7},
      {.temperature = 1.3, .top_k = 1},
      {.temperature = 1.0, .top_k = 20},
      {.temperature = 1.0, .top_p = 0.9},
      {.temperature = 2.0, .top_p = 0.5},
      {.temperature = 1.0, .min_p = 0.05},
      {.temperature = 0.8, .top_k = 50, .top_p = 0.95},
      {.temperature = 1.1, .top_k = 300, .top_p = 0.8, .min_p = 0.01},
      {.temperature = 5.0, .top_k = 100000, .top_p = 0.999}};
  for (SamplingParams& sampling : list) sampling.max_tokens = 48;
  return list;
}

TEST(CudaRounds, GreedyTextIsTheHostsForAllK) {
  LEVIN_NEEDS_CUDA();
  const auto engine = tiny_cuda_engine(1);
  ASSERT_NE(engine->runtime->rounds(), nullptr);
  for (int number = 0; number < 4; ++number) {
    const auto prompt = prompt_of(*engine, number);
    const SamplingParams greedy = {.temperature = 0, .max_tokens = 80};
    const Result plain = run(*engine, request_of(prompt, greedy, 0, false));
    for (int k = 0; k <= 7; ++k) {
      const Result host = run(*engine, request_of(prompt, greedy, k, false));
      const Result device = run(*engine, request_of(prompt, greedy, k, true));
      ASSERT_EQ(host.tokens, plain.tokens) << "k = " << k;
      ASSERT_EQ(device.tokens, plain.tokens) << "k = " << k;
      EXPECT_EQ(device.finish_reason, plain.finish_reason);
      EXPECT_EQ(device.speculation.num_drafts, host.speculation.num_drafts);
      EXPECT_EQ(device.speculation.num_accepted_tokens_per_pos,
                host.speculation.num_accepted_tokens_per_pos);
    }
  }
}

TEST(CudaRounds, SampledTokensAreTheHosts) {
  LEVIN_NEEDS_CUDA();
  const auto engine = tiny_cuda_engine(1);
  int tokens = 0;
  for (SamplingParams sampling : samplings()) {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      sampling.seed = seed;
      const auto prompt = prompt_of(*engine, static_cast<int>(seed));
      for (const int k : {0, 1, 3, 7}) {
        const Result host = run(*engine, request_of(prompt, sampling, k, false));
        const Result device = run(*engine, request_of(prompt, sampling, k, true));
        ASSERT_EQ(device.tokens, host.tokens)
            << "k = " << k << ", temperature " << sampling.temperature << ", top_k "
            << sampling.top_k << ", top_p " << sampling.top_p << ", min_p " << sampling.min_p;
        tokens += static_cast<int>(device.tokens.size());
      }
    }
  }
  fmt::print("  {} sampled tokens equal\n", tokens);
}

// Each sequence drafts among its own first tokens; what comes out is the same text.
TEST(CudaRounds, DraftVocabulariesAreTheHosts) {
  LEVIN_NEEDS_CUDA();
  const auto engine = tiny_cuda_engine(2);
  const int64_t vocab = engine->model->config.vocab_size;
  const SamplingParams greedy = {.temperature = 0, .max_tokens = 60};
  const std::vector<std::pair<int64_t, int64_t>> sizes = {
      {1, 9}, {300, 300}, {vocab / 4, 0}, {vocab / 2 + 3, vocab}};
  for (const auto& [first, second] : sizes) {
    std::vector<Request> requests;
    for (const int64_t size : {first, second}) {
      requests.push_back(
          request_of(prompt_of(*engine, static_cast<int>(requests.size())), greedy, 3, false));
      requests.back().speculation.draft_vocab_size = size;
    }
    const auto host = generate(*engine, requests);
    for (Request& request : requests) request.speculation.device_rounds = true;
    const auto device = generate(*engine, requests);
    for (std::size_t i = 0; i < 2; ++i) {
      const Result plain = run(*engine, request_of(requests[i].prompt, greedy, 0, false));
      ASSERT_EQ(host[i].tokens, plain.tokens) << first << ", " << second;
      ASSERT_EQ(device[i].tokens, plain.tokens) << first << ", " << second;
      EXPECT_EQ(device[i].speculation.num_accepted_tokens_per_pos,
                host[i].speculation.num_accepted_tokens_per_pos);
    }
  }
}

// Random weights leave flat distributions, in which every rounding of a weight would show.
TEST(CudaRounds, VocabulariesOfAwkwardSizes) {
  LEVIN_NEEDS_CUDA();
  for (const int64_t vocab : {17, 255, 1000, 4099, 50257, 131072}) {
    const auto engine = engine_with(random_model(vocab), 2);
    for (SamplingParams sampling : samplings()) {
      sampling.max_tokens = 24;
      sampling.ignore_eos = true;
      std::vector<Request> requests[2];
      for (const bool device : {false, true}) {
        for (uint64_t i = 0; i < 2; ++i) {
          sampling.seed = i;
          requests[device ? 1 : 0].push_back(request_of(prompt_of(*engine, static_cast<int>(i)),
                                                        sampling, static_cast<int>(2 * i), device));
        }
      }
      const auto host = generate(*engine, requests[0]);
      const auto device = generate(*engine, requests[1]);
      for (std::size_t i = 0; i < 2; ++i) {
        ASSERT_EQ(device[i].tokens, host[i].tokens)
            << "vocabulary " << vocab << ", temperature " << sampling.temperature << ", top_k "
            << sampling.top_k << ", top_p " << sampling.top_p << ", min_p " << sampling.min_p;
      }
    }
  }
}

// A vocabulary that no cluster holds: said, and run by the host. Kernels without clusters have no
// such limit.
TEST(CudaRounds, VocabularyTooLargeToSampleFrom) {
  LEVIN_NEEDS_CUDA();
  const auto engine = engine_with(random_model(300000), 1);
  const std::string description = engine->runtime->description();
  const bool clusters = description.find("that start one after the other") == std::string::npos;
  EXPECT_EQ(engine->runtime->rounds()->samples(), !clusters) << description;
  const SamplingParams sampled = {.temperature = 1, .seed = 1, .max_tokens = 6};
  EXPECT_EQ(run(*engine, request_of({1, 2, 3}, sampled, 1, true)).tokens,
            run(*engine, request_of({1, 2, 3}, sampled, 1, false)).tokens);
  const SamplingParams greedy = {.temperature = 0, .max_tokens = 6};
  EXPECT_EQ(run(*engine, request_of({1, 2, 3}, greedy, 1, true)).tokens,
            run(*engine, request_of({1, 2, 3}, greedy, 1, false)).tokens);
}

// All at once, of all kinds, with stops, more than there are slots for.
TEST(CudaRounds, Batches) {
  LEVIN_NEEDS_CUDA();
  const auto single = tiny_cuda_engine(1);
  std::vector<Request> requests;
  std::vector<Result> alone;
  for (int i = 0; i < 24; ++i) {
    SamplingParams sampling = samplings()[static_cast<std::size_t>(i) % 10];
    if (i % 3 == 0) sampling.temperature = 0;
    sampling.seed = static_cast<uint64_t>(i);
    sampling.max_tokens = 1 + (i * 13) % 60;
    if (i % 4 == 1) sampling.stop_token_ids = {261, 13, 10};
    if (i % 5 == 2) sampling.repetition_penalty = 1.2;
    requests.push_back(request_of(prompt_of(*single, i), sampling, i % 8, false));
    alone.push_back(run(*single, requests.back()));
    requests.back().speculation.device_rounds = true;
  }
  for (const int slots : {1, 3, 8}) {
    const auto engine = tiny_cuda_engine(slots);
    const auto together = generate(*engine, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(together[i].tokens, alone[i].tokens) << "request " << i << " of " << slots;
      EXPECT_EQ(together[i].finish_reason, alone[i].finish_reason);
      EXPECT_EQ(together[i].stop_reason, alone[i].stop_reason);
    }
  }
}

TEST(CudaRounds, SyntheticAcceptanceIsTheHosts) {
  LEVIN_NEEDS_CUDA();
  const auto engine = tiny_cuda_engine(1);
  Request request =
      request_of(prompt_of(*engine, 1), {.temperature = 0, .seed = 4, .max_tokens = 600}, 3, true);
  request.sampling.ignore_eos = true;
  request.speculation.synthetic_acceptance_rates = {0.65, 0.6, 0.56};
  const Result device = run(*engine, request);
  request.speculation.device_rounds = false;
  const Result host = run(*engine, request);
  EXPECT_EQ(device.tokens, host.tokens);
  EXPECT_EQ(device.speculation.num_accepted_tokens, host.speculation.num_accepted_tokens);
  const double length = device.speculation.mean_acceptance_length();
  fmt::print("  {:.2f} tokens a round where 2.81 are expected\n", length);
  EXPECT_NEAR(length, 2.81, 0.35);
}

// Thousands of rounds twice: the same tokens each time.
TEST(CudaRounds, SoakIsEqualToItself) {
  LEVIN_NEEDS_CUDA();
  const auto engine = tiny_cuda_engine(2);
  const auto soak = [&] {
    std::vector<Request> requests;
    for (int i = 0; i < 20; ++i) {
      SamplingParams sampling = {.temperature = 1.0, .top_p = 0.95};
      sampling.seed = static_cast<uint64_t>(i);
      sampling.max_tokens = 900;
      sampling.ignore_eos = true;
      requests.push_back(request_of(prompt_of(*engine, i), sampling, i % 4, true));
    }
    std::vector<std::vector<int32_t>> tokens;
    for (const Result& result : generate(*engine, requests)) tokens.push_back(result.tokens);
    return tokens;
  };
  EXPECT_EQ(soak(), soak());
}

// The seam refuses what it was not made for.
TEST(CudaRounds, Refusals) {
  LEVIN_NEEDS_CUDA();
  const auto engine = tiny_cuda_engine(2);
  runtime::Runtime& runtime = *engine->runtime;
  runtime::DeviceRounds& rounds = *runtime.rounds();
  const std::vector<int> slots = {0};
  EXPECT_THROW(rounds.launch(slots, 0), Error);                    // nobody has entered
  EXPECT_THROW(rounds.enter({.slot = 0, .remaining = 5}), Error);  // an empty slot
  EXPECT_THROW(rounds.wait(), Error);                              // nothing in flight
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<runtime::Extend> batch = {{.slot = 0, .tokens = tokens}};
  runtime.extend(batch);
  EXPECT_THROW(rounds.enter({.slot = 0, .last_token = 4, .remaining = 5000}), Error);
  rounds.enter({.slot = 0, .last_token = 4, .remaining = 500});
  EXPECT_TRUE(rounds.knows(0));
  EXPECT_THROW(rounds.launch(slots, 8), Error);
  for (int i = 0; i < rounds.max_in_flight(); ++i) rounds.launch(slots, 1);
  EXPECT_THROW(rounds.launch(slots, 1), Error);
  int64_t length = runtime.length(0);
  EXPECT_EQ(length, 3);
  while (rounds.in_flight() > 0) {
    length += rounds.wait().results[0].block.count;
    EXPECT_EQ(runtime.length(0), length);
  }
  // What was launched before a reset is void.
  rounds.launch(slots, 1);
  runtime.reset(0);
  EXPECT_FALSE(rounds.knows(0));
  EXPECT_EQ(rounds.wait().results[0].block.count, 0);
  EXPECT_EQ(runtime.length(0), 0);
  // An observer wants to see passes.
  runtime::Observer observer;
  observer.hidden = [](int, std::span<const float>, int) {};
  runtime.set_observer(observer);
  EXPECT_EQ(runtime.rounds(), nullptr);
  runtime.set_observer({});
  EXPECT_NE(runtime.rounds(), nullptr);
}

// The device's own read bandwidth, of its memory and of its cache.
TEST(CudaRounds, ReadBandwidthIsTheDevices) {
  LEVIN_NEEDS_CUDA();
  const auto engine = tiny_cuda_engine(1);
  for (const std::size_t bytes : {std::size_t{1} << 31, std::size_t{16} << 20}) {
    const auto rates = engine->runtime->read_gb_per_s(bytes, 3);
    ASSERT_EQ(rates.size(), 3U);
    fmt::print("  {} MiB read at {:.0f} GB/s\n", bytes >> 20, rates[1]);
    EXPECT_GT(rates[1], 100);
    EXPECT_LT(rates[1], 30000);
  }
}

}  // namespace
}  // namespace levin::engine
