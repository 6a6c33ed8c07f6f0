// The prefix cache with a real model: whatever it restores, the tokens are those without it. Free
// slots are full of NaN.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "engine/scheduler.h"
#include "fake_runtime.h"

namespace levin::engine {
namespace {

using testing::fake_engine;
using testing::fake_options;
using testing::random_logits;
using testing::Tokens;

LoadOptions fast_options(bool poison) {
  LoadOptions options;
  options.runtime.max_model_len = 512;
  options.runtime.max_num_seqs = 3;
  options.runtime.max_extend_tokens = 128;
  options.runtime.threads = 1;
  options.runtime.poison_free_slots = poison;
  return options;
}

Engine& tiny(bool poison = true) {
  static const std::filesystem::path folder =
      std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny";
  static const auto clean = load_engine(folder, fast_options(false));
  static const auto poisoned = load_engine(folder, fast_options(true));
  return poison ? *poisoned : *clean;
}

constexpr int64_t kPlenty = int64_t{256} << 20;

Tokens encode(std::string_view text) {
  return tiny().tokenizer->encode(text);
}

Request greedy(Tokens prompt, int k, int64_t max_tokens = 16) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = 0, .max_tokens = max_tokens, .ignore_eos = true},
          .speculation = {.num_speculative_tokens = k}};
}

Result serve(Scheduler& scheduler, const Request& request, std::vector<int64_t> turn_ends = {}) {
  Result result;
  scheduler.submit(
      {.request = request, .turn_ends = std::move(turn_ends), .on_finish = [&](Completion&& done) {
         EXPECT_FALSE(done.error);
         result = std::move(done.result);
       }});
  while (scheduler.step()) {
  }
  return result;
}

Result without_cache(const Request& request) {
  return std::move(generate(tiny(false), {&request, 1}).front());
}

const char* const kStory =
    "Once upon a time there was a small town by the sea. Every morning the fishermen went out "
    "with their boats, and every evening they came back with what they had caught. ";

TEST(TinyPrefixCache, ReplaysAreTheSame) {
  for (const int k : {0, 3, 5}) {
    Scheduler scheduler(tiny(), {.prefix_cache_bytes = kPlenty, .snapshot_gap = 4});
    const Tokens shared = encode(kStory);
    Request a = greedy(shared, k);
    Request b = greedy(shared, k);
    for (const int32_t token : encode("A boy found a shell.")) a.prompt.push_back(token);
    for (const int32_t token : encode("Then the storm came!")) b.prompt.push_back(token);
    const Result expected_a = without_cache(a);
    const Result expected_b = without_cache(b);
    const std::vector<int64_t> turns = {static_cast<int64_t>(shared.size())};
    for (int round = 0; round < 3; ++round) {
      const Result first = serve(scheduler, a, turns);
      EXPECT_EQ(first.tokens, expected_a.tokens);
      EXPECT_EQ(first.speculation.num_accepted_tokens > 0, k > 0);
      EXPECT_EQ(first.cached_tokens, round == 0 ? 0 : static_cast<int64_t>(a.prompt.size()) - 1);
      const Result second = serve(scheduler, b, turns);
      EXPECT_EQ(second.tokens, expected_b.tokens);
      EXPECT_EQ(second.cached_tokens, round == 0 ? static_cast<int64_t>(shared.size())
                                                 : static_cast<int64_t>(b.prompt.size()) - 1);
    }
  }
}

// 200 rounds of texts that share beginnings, are edited in the middle, or are very short, three at
// a time, under a budget that holds some of it.
TEST(TinyPrefixCache, TwoHundredRoundsChangeNothing) {
  Scheduler scheduler(
      tiny(), {.prefix_cache_bytes = int64_t{24} << 20, .snapshot_stride = 48, .snapshot_gap = 8});
  std::mt19937 random(1);
  const Tokens story = encode(std::string(kStory) + kStory + kStory);
  std::vector<Tokens> texts = {story};
  int64_t cached = 0;
  for (int round = 0; round < 67; ++round) {
    std::vector<Request> requests;
    std::vector<Result> results(3);
    for (std::size_t i = 0; i < 3; ++i) {
      Tokens text = texts[random() % texts.size()];
      if (random() % 3 == 0) text[random() % text.size()] = static_cast<int32_t>(random() % 4000);
      if (random() % 5 == 0) {
        text.resize(1 + random() % 5);
      } else {
        text.resize(std::min<std::size_t>(text.size(), 30 + random() % 120));
        while (text.size() < 40) text.push_back(static_cast<int32_t>(random() % 4000));
        texts.push_back(text);
      }
      Request request = greedy(text, static_cast<int>(random() % 6), 1 + random() % 10);
      if (random() % 2 == 0) request.sampling.temperature = 0.8;
      request.sampling.seed = random();
      request.speculation.adaptive = random() % 3 == 0;
      requests.push_back(request);
      scheduler.submit({.request = request,
                        .priority = static_cast<int>(random() % 2),
                        .turn_ends = {static_cast<int64_t>(random() % text.size())},
                        .on_finish = [&results, i](Completion&& done) {
                          EXPECT_FALSE(done.error);
                          results[i] = std::move(done.result);
                        }});
      if (random() % 2 == 0) scheduler.step();
    }
    while (scheduler.step()) {
    }
    const std::vector<Result> expected = generate(tiny(false), requests);
    for (std::size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(results[i].tokens, expected[i].tokens) << "round " << round;
      ASSERT_EQ(results[i].text, expected[i].text);
      cached += results[i].cached_tokens;
      Tokens continued = requests[i].prompt;
      continued.insert(continued.end(), results[i].tokens.begin(), results[i].tokens.end());
      if (random() % 2 == 0) texts.push_back(continued);
    }
  }
  const PrefixCacheStats stats = scheduler.metrics().prefix_cache;
  fmt::print("  {} of {} tokens from the cache, {} hits of {}, {} snapshots, {} evicted\n", cached,
             stats.query_tokens, stats.hits, stats.queries, stats.snapshots, stats.evicted);
  EXPECT_GT(stats.hits, 60);
  EXPECT_GT(stats.evicted, 0);
}

TEST(TinyPrefixCache, TheNextTurnReadsOnlyWhatIsNew) {
  Scheduler scheduler(tiny(), {.prefix_cache_bytes = kPlenty});
  Request turn = greedy(encode(kStory), 3, 40);
  const Result first = serve(scheduler, turn);
  turn.prompt.insert(turn.prompt.end(), first.tokens.begin(), first.tokens.end());
  const auto known = static_cast<int64_t>(turn.prompt.size());
  for (const int32_t token : encode("And what did the captain say to that?")) {
    turn.prompt.push_back(token);
  }
  const int64_t before = scheduler.metrics().prefilled_tokens;
  const Result second = serve(scheduler, turn);
  EXPECT_EQ(second.tokens, without_cache(turn).tokens);
  EXPECT_EQ(second.cached_tokens, known - 1);
  EXPECT_LE(scheduler.metrics().prefilled_tokens - before,
            static_cast<int64_t>(turn.prompt.size()) - known + 1);
}

TEST(TinyPrefixCache, ShortPromptsToo) {
  Scheduler scheduler(tiny(), {.prefix_cache_bytes = kPlenty});
  for (const std::size_t length : {1U, 2U, 3U, 20U}) {
    Tokens prompt = encode(kStory);
    prompt.resize(length);
    for (int round = 0; round < 3; ++round) {
      const Request request = greedy(prompt, 2);
      const Result result = serve(scheduler, request);
      ASSERT_EQ(result.tokens, without_cache(request).tokens) << length;
      if (round > 0) {
        EXPECT_EQ(result.cached_tokens, static_cast<int64_t>(length) - 1);
      }
      prompt.back() = static_cast<int32_t>(300 + round);
    }
  }
}

TEST(TinyPrefixCache, ToTheEndOfTheContext) {
  Scheduler scheduler(tiny(), {.prefix_cache_bytes = kPlenty});
  Tokens prompt = encode(std::string(kStory) + kStory + kStory + kStory);
  prompt.resize(100);
  while (prompt.size() < 440) prompt.insert(prompt.end(), prompt.begin(), prompt.begin() + 20);
  for (const int k : {0, 5, 7}) {
    const Request request = greedy(prompt, k, 500);
    for (int round = 0; round < 2; ++round) {
      const Result result = serve(scheduler, request);
      EXPECT_EQ(result.tokens.size(), 512 - prompt.size());
      EXPECT_EQ(result.finish_reason, FinishReason::kLength);
      ASSERT_EQ(result.tokens, without_cache(request).tokens);
    }
  }
}

// A prompt of 8,000 tokens edited in the middle, with the settings that are there by default.
TEST(PrefixCacheDefaults, AnEditInTheMiddleKeepsMostOfWhatIsBefore) {
  runtime::Options options = fake_options();
  options.max_model_len = 10000;
  options.max_extend_tokens = 512;
  const auto engine = fake_engine(50, random_logits(1), nullptr, options);
  Scheduler scheduler(*engine, {.prefix_cache_bytes = kPlenty});
  Request request = {.prompt = {}, .sampling = {.temperature = 0, .max_tokens = 2}};
  std::mt19937 random(2);
  for (int i = 0; i < 8000; ++i) request.prompt.push_back(static_cast<int32_t>(random() % 50));
  serve(scheduler, request);
  request.prompt[4000] = (request.prompt[4000] + 1) % 50;
  EXPECT_GE(serve(scheduler, request).cached_tokens, 3200);
  // Identical ones cost one token.
  EXPECT_EQ(serve(scheduler, request).cached_tokens, 7999);
}

}  // namespace
}  // namespace levin::engine
