// Which snapshots are kept and found, on a fake runtime that counts.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "fake_runtime.h"

namespace levin::engine {
namespace {

using testing::fake_engine;
using testing::fake_options;
using testing::FakeRuntime;
using testing::random_logits;
using testing::Tokens;

constexpr int64_t kState = 16 * FakeRuntime::kTokenBytes;

class Cache : public ::testing::Test {
 protected:
  explicit Cache(int64_t max_model_len = 4096) {
    runtime::Options options = fake_options();
    options.max_model_len = max_model_len;
    options.max_extend_tokens = 4096;
    engine_ = fake_engine(50, random_logits(1), nullptr, options);
  }

  FakeRuntime& runtime() { return static_cast<FakeRuntime&>(*engine_->runtime); }

  // Puts the tokens into slot 0 and saves them.
  bool save(PrefixCache& cache, const Tokens& tokens) {
    runtime().reset(0);
    const runtime::Extend entry = {.slot = 0, .tokens = tokens, .logits_rows = 0};
    runtime().extend({&entry, 1});
    return cache.save(0, tokens);
  }
  // The length found, checked against what the slot then holds.
  int64_t restore(PrefixCache& cache, const Tokens& tokens, int64_t longest) {
    const int64_t length = cache.restore(1, tokens, longest);
    const Tokens prefix(tokens.begin(), tokens.begin() + length);
    EXPECT_EQ(runtime().tokens_in(1), prefix);
    return length;
  }

  std::unique_ptr<Engine> engine_;
};

Tokens upto(int32_t count) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  for (int32_t& token : tokens) token = (token * 7 + token / 50) % 50;
  return tokens;
}

TEST_F(Cache, FindsTheLongestSavedPrefix) {
  PrefixCache cache(runtime(), 1 << 20);
  EXPECT_EQ(restore(cache, upto(20), 19), 0);
  EXPECT_TRUE(save(cache, upto(10)));
  EXPECT_TRUE(save(cache, upto(30)));
  EXPECT_TRUE(save(cache, upto(20)));
  EXPECT_EQ(restore(cache, upto(40), 39), 30);
  EXPECT_EQ(restore(cache, upto(30), 29), 20);
  EXPECT_EQ(restore(cache, upto(30), 30), 30);
  EXPECT_EQ(restore(cache, upto(10), 9), 0);
  Tokens edited = upto(40);
  edited[25] = (edited[25] + 1) % 50;
  EXPECT_EQ(restore(cache, edited, 39), 20);
  edited[0] = (edited[0] + 1) % 50;
  EXPECT_EQ(restore(cache, edited, 39), 0);
  EXPECT_EQ(cache.stats().queries, 7);
  EXPECT_EQ(cache.stats().hits, 4);
  EXPECT_EQ(cache.stats().hit_tokens, 30 + 20 + 30 + 20);
}

TEST_F(Cache, ContinuationsShareTheirPrefix) {
  PrefixCache cache(runtime(), 1 << 20);
  ASSERT_TRUE(save(cache, upto(1000)));
  const int64_t once = cache.stats().bytes;
  EXPECT_EQ(once, 1000 * FakeRuntime::kTokenBytes + kState);
  ASSERT_TRUE(save(cache, upto(1010)));
  EXPECT_EQ(cache.stats().bytes - once, 10 * FakeRuntime::kTokenBytes + kState);
  ASSERT_TRUE(save(cache, upto(1010)));
  EXPECT_EQ(cache.stats().bytes - once, 10 * FakeRuntime::kTokenBytes + kState);
  EXPECT_EQ(cache.stats().snapshots, 2);
}

TEST_F(Cache, LeastRecentlyUsedLeavesGoFirst) {
  // Room for about four conversations of 100 tokens.
  PrefixCache cache(runtime(), 4 * (100 * FakeRuntime::kTokenBytes + kState));
  std::vector<Tokens> conversations;
  for (int32_t i = 0; i < 6; ++i) {
    conversations.push_back(upto(100));
    conversations.back()[0] = i;
  }
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(save(cache, conversations[static_cast<std::size_t>(i)]));
  EXPECT_EQ(restore(cache, conversations[0], 100), 100);
  ASSERT_TRUE(save(cache, conversations[4]));
  EXPECT_EQ(restore(cache, conversations[1], 100), 0);
  EXPECT_EQ(restore(cache, conversations[0], 100), 100);
  ASSERT_TRUE(save(cache, conversations[5]));
  EXPECT_EQ(restore(cache, conversations[2], 100), 0);
  for (const std::size_t kept : {0U, 3U, 4U, 5U}) {
    EXPECT_EQ(restore(cache, conversations[kept], 100), 100);
  }
  EXPECT_EQ(cache.stats().evicted, 2);
}

// A long prompt whose snapshots do not all fit keeps the newest, and spreads the others out.
TEST_F(Cache, LongPromptKeepsItsNewestAndThinsTheRest) {
  const int64_t budget = 2000 * FakeRuntime::kTokenBytes + 8 * kState;
  PrefixCache cache(runtime(), budget);
  for (int32_t length = 50; length <= 2000; length += 50) {
    ASSERT_TRUE(save(cache, upto(length))) << length;
    EXPECT_LE(cache.stats().bytes, budget);
    EXPECT_EQ(restore(cache, upto(length), length), length);
  }
  EXPECT_GT(cache.stats().thinned, 20);
  EXPECT_EQ(cache.stats().evicted, 0);
  // An edit in the middle still finds something not far before it.
  EXPECT_GE(restore(cache, upto(2000), 1000), 500);
  EXPECT_GE(restore(cache, upto(2000), 1700), 1000);
  // A state that was given up can come back.
  const int64_t saved = cache.stats().saved;
  Tokens again = upto(2000);
  for (int32_t length = 50; length < 2000; length += 50) save(cache, upto(length));
  EXPECT_GT(cache.stats().saved, saved);
  EXPECT_LE(cache.stats().bytes, budget);
}

TEST_F(Cache, WhatCannotFitIsRefused) {
  PrefixCache cache(runtime(), 100 * FakeRuntime::kTokenBytes + kState);
  ASSERT_TRUE(save(cache, upto(60)));
  EXPECT_FALSE(save(cache, upto(101)));
  EXPECT_EQ(cache.stats().refused, 1);
  EXPECT_EQ(restore(cache, upto(70), 69), 60);
  EXPECT_TRUE(save(cache, upto(100)));  // thins the one before
  EXPECT_EQ(restore(cache, upto(100), 100), 100);
  EXPECT_EQ(restore(cache, upto(100), 99), 0);
}

// Against a plain model of what must be found: anything saved whose chain was not given up.
TEST_F(Cache, RandomUse) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 20; ++trial) {
    const int64_t budget = static_cast<int64_t>(random() % 60 + 1) * 10 * kState;
    PrefixCache cache(runtime(), budget);
    std::set<Tokens> saved;
    std::vector<Tokens> texts = {upto(5)};
    for (int step = 0; step < 300; ++step) {
      // A text that shares a beginning with an earlier one.
      Tokens text = texts[random() % texts.size()];
      text.resize(1 + random() % text.size());
      for (std::size_t more = random() % 40; more > 0; --more) {
        text.push_back(static_cast<int32_t>(random() % 3));
      }
      texts.push_back(text);
      if (random() % 2 == 0) {
        if (save(cache, text)) saved.insert(text);
        EXPECT_LE(cache.stats().bytes, budget);
      } else {
        const auto length = restore(cache, text, static_cast<int64_t>(text.size()) - 1);
        if (length > 0) {
          EXPECT_TRUE(saved.contains(Tokens(text.begin(), text.begin() + length)));
        }
      }
    }
    const PrefixCacheStats& stats = cache.stats();
    EXPECT_GE(stats.snapshots, 0);
    EXPECT_EQ(stats.bytes == 0, stats.snapshots == 0);
  }
}

TEST(SnapshotLengths, EndOfThePromptTurnsAndStride) {
  using Lengths = std::vector<int64_t>;
  EXPECT_EQ(snapshot_lengths(1, 0, {}, {512, 32}), Lengths{});
  EXPECT_EQ(snapshot_lengths(2, 0, {}, {512, 32}), Lengths{1});
  EXPECT_EQ(snapshot_lengths(20, 0, {}, {512, 32}), Lengths{19});
  EXPECT_EQ(snapshot_lengths(20, 19, {}, {512, 32}), Lengths{});
  EXPECT_EQ(snapshot_lengths(1200, 0, {}, {512, 32}), (Lengths{512, 1024, 1199}));
  EXPECT_EQ(snapshot_lengths(1200, 512, {}, {512, 32}), (Lengths{1024, 1199}));
  EXPECT_EQ(snapshot_lengths(1030, 0, {}, {512, 32}), (Lengths{512, 1029}));
  const std::vector<int64_t> turns = {1192, 100, 110, 500, 1200};
  EXPECT_EQ(snapshot_lengths(1200, 0, turns, {512, 32}), (Lengths{100, 500, 1024, 1199}));
  EXPECT_EQ(snapshot_lengths(1200, 0, std::vector<int64_t>{1190}, {0, 32}), (Lengths{1190, 1199}));
  EXPECT_EQ(snapshot_lengths(1200, 0, turns, {0, 1}), (Lengths{100, 110, 500, 1192, 1199}));
  EXPECT_EQ(snapshot_lengths(1200, 0, turns, {512, 32, 128}), (Lengths{384, 512, 1024, 1152}));
  EXPECT_EQ(snapshot_lengths(1025, 0, {}, {0, 32, 128}), Lengths{1024});
  EXPECT_EQ(snapshot_lengths(128, 0, {}, {512, 32, 128}), Lengths{});
}

}  // namespace
}  // namespace levin::engine
