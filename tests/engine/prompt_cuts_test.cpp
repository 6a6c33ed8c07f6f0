// Devices whose bits depend on where a prompt is cut: answers depend on the request alone.
#include "engine/prompt_cuts.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <numeric>
#include <random>

#include "engine/scheduler.h"
#include "fake_runtime.h"

namespace levin::engine {
namespace {

using testing::disturbed;
using testing::fake_engine;
using testing::FakeRuntime;
using testing::random_logits;
using testing::Tokens;

constexpr runtime::ExtendCuts kCuts = {.alignment = 16, .short_tokens = 4};

// Cuts [0, end) with steps of `most` tokens; where they are.
std::vector<int64_t> cuts_of(int64_t prompt, int64_t end, int64_t most) {
  std::vector<int64_t> cuts;
  for (int64_t at = 0; at < end;) {
    const int64_t size = next_extend(kCuts, {.consumed = at, .prompt = prompt, .end = end}, most);
    if (size <= 0) return {-1};
    cuts.push_back(at += size);
  }
  return cuts;
}

TEST(PromptCuts, AtMultiplesAndBeforeAShortRest) {
  using Cuts = std::vector<int64_t>;
  EXPECT_EQ(cuts_of(3, 3, 64), Cuts{3});
  EXPECT_EQ(cuts_of(10, 10, 64), Cuts{10});
  EXPECT_EQ(cuts_of(48, 48, 64), Cuts{48});
  EXPECT_EQ(cuts_of(48, 48, 40), (Cuts{32, 48}));
  EXPECT_EQ(cuts_of(50, 50, 64), (Cuts{48, 50}));  // whether or not there is room
  EXPECT_EQ(cuts_of(50, 50, 16), (Cuts{16, 32, 48, 50}));
  EXPECT_EQ(cuts_of(53, 53, 64), Cuts{53});
  EXPECT_EQ(cuts_of(53, 53, 20), (Cuts{16, 32, 48, 53}));
  EXPECT_EQ(cuts_of(53, 53, 15), Cuts{-1});
  EXPECT_EQ(cuts_of(40, 50, 64), (Cuts{40, 44, 48, 50}));  // an output again
  EXPECT_EQ(next_extend({}, {.consumed = 3, .prompt = 50, .end = 50}, 7), 7);
}

// Whatever the steps have room for, a token is in a long extend or in a short one, and long ones
// begin at multiples.
TEST(PromptCuts, DoNotDependOnTheRoom) {
  std::mt19937 random(1);
  for (int64_t prompt = 1; prompt < 120; ++prompt) {
    std::vector<bool> expected;
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<bool> is_long;
      for (int64_t at = 0; at < prompt;) {
        const int64_t most = trial == 0 ? 1000 : 1 + static_cast<int64_t>(random() % 60);
        const int64_t size = next_extend(kCuts, {at, prompt, prompt}, most);
        ASSERT_LE(size, most);
        ASSERT_TRUE(size > 0 || most < kCuts.alignment);
        ASSERT_TRUE(size <= kCuts.short_tokens || at % kCuts.alignment == 0);
        is_long.insert(is_long.end(), static_cast<std::size_t>(size), size > kCuts.short_tokens);
        at += size;
      }
      if (trial == 0) expected = is_long;
      ASSERT_EQ(is_long, expected) << "prompt of " << prompt;
    }
  }
}

// A device like that: the logits behind a token depend, for each token before, on whether it came
// in a long extend, and where that began.
class CutRuntime final : public FakeRuntime {
 public:
  using FakeRuntime::FakeRuntime;

  runtime::ExtendCuts extend_cuts() const override {
    return declares ? kCuts : runtime::ExtendCuts{};
  }

  void extend(std::span<const runtime::Extend> batch) override {
    for (const runtime::Extend& entry : batch) {
      const auto at = static_cast<std::size_t>(length(entry.slot));
      const bool is_long = static_cast<int64_t>(entry.tokens.size()) > kCuts.short_tokens;
      Tokens& marks = marks_[entry.slot];
      marks.resize(at);
      marks.insert(marks.end(), entry.tokens.size(),
                   is_long ? 1 + static_cast<int32_t>(at % std::size_t{kCuts.alignment}) : 0);
    }
    FakeRuntime::extend(batch);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Tokens& marks = marks_[batch[i].slot];
      const std::size_t rows = logits_[i].size();
      for (std::size_t row = 0; row < rows; ++row) {
        disturb(std::span(marks).first(marks.size() - rows + row + 1), logits_[i][row]);
      }
    }
  }
  runtime::Snapshot save(int slot, int64_t parent) override {
    ++saves;
    Tokens marks = marks_[slot];
    marks.resize(tokens_in(slot).size());
    saved_[tokens_in(slot)] = marks;
    return FakeRuntime::save(slot, parent);
  }
  void restore(int slot, std::span<const runtime::Snapshot> chain) override {
    FakeRuntime::restore(slot, chain);
    marks_[slot] = saved_.at(tokens_in(slot));
  }

  bool declares = true;
  int saves = 0;

 private:
  static void disturb(std::span<const int32_t> marks, std::span<float> logits) {
    uint32_t hash = 1;
    for (const int32_t mark : marks) hash = hash * 31 + static_cast<uint32_t>(mark);
    std::minstd_rand random(hash);
    random.discard(3);
    for (float& logit : logits) logit += std::uniform_real_distribution<float>(0, 1)(random);
  }

  std::map<int, Tokens> marks_;  // by slot
  std::map<Tokens, Tokens> saved_;
};

constexpr int64_t kVocab = 24;

std::unique_ptr<Engine> make_engine(int slots, int rows, bool declares) {
  auto engine = fake_engine<CutRuntime>(
      kVocab, random_logits(4), disturbed(random_logits(4), 9, 0.3),
      {.max_model_len = 256, .max_num_seqs = slots, .max_extend_tokens = rows, .max_rewind = 4});
  static_cast<CutRuntime&>(*engine->runtime).declares = declares;
  return engine;
}

Request make_request(std::mt19937& random) {
  Tokens prompt(1 + random() % 150);
  std::iota(prompt.begin(), prompt.end(), static_cast<int32_t>(random() % 2));
  for (int32_t& token : prompt) token = static_cast<int32_t>(token % kVocab);
  prompt.back() = static_cast<int32_t>(random() % kVocab);
  return {.prompt = prompt,
          .sampling = {.temperature = random() % 3 == 0 ? 0.0 : 1.0,
                       .seed = random(),
                       .max_tokens = 1 + static_cast<int64_t>(random() % 40)},
          .speculation = {.num_speculative_tokens = static_cast<int>(random() % 4)}};
}

struct Outcome {
  int requests = 0;
  int different = 0;  // from what they are alone
  int64_t preemptions = 0;
  int64_t hits = 0;
};

// Requests that come while others run, of several priorities, with and without a prefix cache.
Outcome run_together(bool declares) {
  Outcome outcome;
  std::mt19937 random(1);
  const auto alone = make_engine(1, 256, declares);
  for (int trial = 0; trial < 24; ++trial) {
    const int rows = std::array{17, 40, 64, 200}[random() % 4];
    const auto engine = make_engine(1 + static_cast<int>(random() % 5), rows, declares);
    Scheduler scheduler(*engine, {.prefix_cache_bytes = trial % 2 == 0 ? 0 : 20000,
                                  .snapshot_stride = 16,
                                  .snapshot_gap = 4,
                                  .decode_slowdown = trial % 5 == 0 ? 0.0 : 1.5});
    std::map<uint64_t, Request> requests;
    std::map<uint64_t, Tokens> tokens;
    for (int i = 0; i < 20; ++i) {
      const Request request = make_request(random);
      const auto length = static_cast<int64_t>(request.prompt.size());
      Submission submission{.request = request,
                            .priority = static_cast<int>(random() % 3),
                            .turn_ends = {length / 3, length / 2},
                            .on_finish = [&](Completion&& done) {
                              EXPECT_FALSE(done.error);
                              tokens[done.id] = done.result.tokens;
                            }};
      requests.emplace(scheduler.submit(std::move(submission)).id, request);
      for (std::size_t steps = random() % 6; steps > 0; --steps) scheduler.step();
    }
    while (scheduler.step()) {
    }
    for (const auto& [id, request] : requests) {
      ++outcome.requests;
      if (tokens.at(id) != testing::run(*alone, request).tokens) ++outcome.different;
    }
    outcome.preemptions += scheduler.metrics().preemptions;
    outcome.hits += scheduler.metrics().prefix_cache.hits;
  }
  return outcome;
}

TEST(PromptCuts, NothingAroundARequestChangesItsTokens) {
  const Outcome outcome = run_together(true);
  EXPECT_EQ(outcome.different, 0) << "of " << outcome.requests;
  EXPECT_GT(outcome.preemptions, 20);
  EXPECT_GT(outcome.hits, 20);
}

// The control: were the cuts not declared, the test would show it.
TEST(PromptCuts, WhichTheyWouldIfTheyWereNotMinded) {
  EXPECT_GT(run_together(false).different, 20);
}

// Steps too small for a chunk: everything is still answered.
TEST(PromptCuts, AreGivenUpWhereAStepHasNoRoom) {
  const auto engine = make_engine(2, 8, true);
  std::mt19937 random(2);
  for (int i = 0; i < 10; ++i) {
    const Request request = make_request(random);
    EXPECT_EQ(static_cast<int64_t>(testing::run(*engine, request).tokens.size()),
              request.sampling.max_tokens);
  }
}

}  // namespace
}  // namespace levin::engine
