// Snapshots on the device: sequences read in chunks, and a prefix cache under whole generation
// rounds. What holds for every runtime is in conformance.h. Free slots are full of NaN.
#include <fmt/format.h>

#include <random>

#include "conformance.h"
#include "cuda_device.h"
#include "cuda_engine.h"
#include "engine/scheduler.h"

namespace levin::engine {
namespace {

using runtime::Snapshot;
using runtime::conformance::Bits;
using runtime::conformance::Tokens;
using testing::tiny_cuda_engine;

Tokens random_tokens(std::mt19937& random, std::size_t count) {
  Tokens tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 4000);
  return tokens;
}

// A prompt of three chunks, the last one short, and single tokens behind it; saved after each.
TEST(CudaSnapshots, OfChunksContinueTheSame) {
  LEVIN_NEEDS_CUDA();
  const auto clean = tiny_cuda_engine(1);
  const auto poisoned = tiny_cuda_engine(2, true);
  runtime::Runtime& plain = *clean->runtime;
  runtime::Runtime& cached = *poisoned->runtime;
  std::mt19937 random(1);
  const Tokens tokens = random_tokens(random, 310);
  const Tokens block = random_tokens(random, 8);
  const std::vector<std::size_t> cuts = {0, 128, 256, 300, 301, 305, 310};
  const auto extend = [&](runtime::Runtime& runtime, int slot, std::size_t from, std::size_t to) {
    const runtime::Extend entry = {
        .slot = slot, .tokens = std::span(tokens).subspan(from, to - from), .logits_rows = 0};
    runtime.extend({&entry, 1});
  };
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) extend(plain, 0, cuts[i], cuts[i + 1]);
  const Bits expected = runtime::conformance::future_bits(plain, 0, block);
  std::vector<Snapshot> chain;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    extend(cached, 0, cuts[i], cuts[i + 1]);
    chain.push_back(cached.save(0, static_cast<int64_t>(cuts[i])));
  }
  for (std::size_t links = 1; links <= chain.size(); ++links) {
    cached.restore(1, std::span(chain).first(links));
    for (std::size_t i = links; i + 1 < cuts.size(); ++i) extend(cached, 1, cuts[i], cuts[i + 1]);
    runtime::conformance::expect_same(expected, runtime::conformance::future_bits(cached, 1, block),
                                      fmt::format("{} links", links));
  }
}

// Bytes of another runtime mean something else.
TEST(CudaSnapshots, OfAnotherRuntimeAreRefused) {
  LEVIN_NEEDS_CUDA();
  const auto one = tiny_cuda_engine(1);
  const auto other = tiny_cuda_engine(1);
  const Tokens tokens = {1, 2, 3};
  const runtime::Extend entry = {.slot = 0, .tokens = tokens, .logits_rows = 0};
  one->runtime->extend({&entry, 1});
  const Snapshot snapshot = one->runtime->save(0, 0);
  EXPECT_THROW(other->runtime->restore(0, {&snapshot, 1}), Error);
  one->runtime->restore(0, {&snapshot, 1});
  EXPECT_EQ(one->runtime->length(0), 3);
}

// They may be kept for longer than the runtime lives.
TEST(CudaSnapshots, OutliveTheirRuntime) {
  LEVIN_NEEDS_CUDA();
  std::vector<Snapshot> kept;
  {
    const auto engine = tiny_cuda_engine(1);
    const Tokens tokens = {1, 2, 3};
    const runtime::Extend entry = {.slot = 0, .tokens = tokens, .logits_rows = 0};
    engine->runtime->extend({&entry, 1});
    kept.push_back(engine->runtime->save(0, 0));
  }
  kept.clear();
}

// Texts that share beginnings, are edited in the middle or very short, three at a time, drafted and
// sampled on the device, under a budget that holds some of it: the tokens are those without a
// cache.
TEST(CudaSnapshots, APrefixCacheChangesNothing) {
  LEVIN_NEEDS_CUDA();
  const auto clean = tiny_cuda_engine(3);
  const auto poisoned = tiny_cuda_engine(3, true);
  Scheduler scheduler(*poisoned, {.prefix_cache_bytes = int64_t{12} << 20,
                                  .snapshot_stride = 128,
                                  .snapshot_gap = 8,
                                  .snapshot_outputs = true});
  std::mt19937 random(2);
  std::vector<Tokens> texts = {random_tokens(random, 600)};
  int64_t cached = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<Request> requests;
    std::vector<Result> results(3);
    for (std::size_t i = 0; i < 3; ++i) {
      Tokens text = texts[random() % texts.size()];
      if (random() % 3 == 0) text[random() % text.size()] = static_cast<int32_t>(random() % 4000);
      text.resize(std::min<std::size_t>(text.size(), 1 + random() % 500));
      while (random() % 4 != 0 && text.size() < 700) {
        text.push_back(static_cast<int32_t>(random() % 4000));
      }
      Request request = {.prompt = text,
                         .sampling = {.temperature = random() % 2 == 0 ? 0.0 : 0.8,
                                      .max_tokens = 1 + static_cast<int64_t>(random() % 20),
                                      .ignore_eos = true},
                         .speculation = {.num_speculative_tokens = static_cast<int>(random() % 4),
                                         .device_rounds = random() % 4 != 0}};
      request.sampling.seed = random();
      requests.push_back(request);
      scheduler.submit({.request = request,
                        .turn_ends = {static_cast<int64_t>(random() % text.size())},
                        .on_finish = [&results, i](Completion&& done) {
                          EXPECT_FALSE(done.error);
                          results[i] = std::move(done.result);
                        }});
      if (random() % 2 == 0) scheduler.step();
    }
    while (scheduler.step()) {
    }
    const std::vector<Result> expected = generate(*clean, requests);
    for (std::size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(results[i].tokens, expected[i].tokens) << "round " << round << ", request " << i;
      cached += results[i].cached_tokens;
      Tokens continued = requests[i].prompt;
      continued.insert(continued.end(), results[i].tokens.begin(), results[i].tokens.end());
      texts.push_back(random() % 2 == 0 ? continued : requests[i].prompt);
    }
  }
  const PrefixCacheStats stats = scheduler.metrics().prefix_cache;
  fmt::print("  {} of {} tokens from the cache, {} hits of {}, {} snapshots, {} evicted\n", cached,
             stats.query_tokens, stats.hits, stats.queries, stats.snapshots, stats.evicted);
  EXPECT_GT(stats.hits, 30);
  EXPECT_GT(stats.evicted, 0);
}

}  // namespace
}  // namespace levin::engine
