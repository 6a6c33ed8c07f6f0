// What goes wrong with one request ends that request: everybody else's tokens are those they would
// have been without it.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

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
using testing::FakeRuntime;
using testing::random_logits;
using testing::run;
using testing::Tokens;

constexpr int32_t kBad = 7;  // the prompt of the request in question begins with it
constexpr int64_t kGoodTokens = 12;

Error injected(const char* what, const char* where) {
  return Error({.what = what, .where = where, .expected = {}, .found = {}, .hint = {}});
}

// Allows everything, and throws when it has accepted so many tokens.
class FaultyFilter : public TokenFilter {
 public:
  FaultyFilter(int64_t good, bool in_allowed) : good_(good), in_allowed_(in_allowed) {}
  void allowed(std::span<uint64_t> mask) override {
    if (in_allowed_ && accepted_ == good_) throw injected("injected", "allowed");
    std::fill(mask.begin(), mask.end(), ~uint64_t{0});
  }
  void accept(int32_t /*token*/) override {
    if (!in_allowed_ && accepted_ == good_) throw injected("injected", "accept");
    ++accepted_;
  }

 private:
  int64_t good_;
  bool in_allowed_;
  int64_t accepted_ = 0;
};

enum class Fault { kNone, kAllowed, kAccept, kText, kNotANumber };

struct Bench {
  std::unique_ptr<Engine> engine;
  int32_t unknown_token = 0;  // in the model's vocabulary, not in the tokenizer's
};

// The model's vocabulary is padded beyond the tokenizer's, as real ones are.
Bench make_bench(Fault fault, bool device, int slots) {
  auto tokenizer = text::Tokenizer::load(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny");
  Bench bench;
  bench.unknown_token = tokenizer.vocab_size() + 3;
  const auto good = random_logits(4);
  const auto model = [=, unknown = static_cast<std::size_t>(bench.unknown_token)](
                         std::span<const int32_t> history, std::span<float> logits) {
    std::fill(logits.begin(), logits.end(), -20.0F);
    good(history, logits.first(64));
    if (history.front() != kBad || history.size() < 1 + kGoodTokens) return;
    if (fault == Fault::kText) logits[unknown] = 100;
    if (fault == Fault::kNotANumber) std::fill(logits.begin(), logits.end(), NAN);
  };
  runtime::Options options = fake_options();
  options.max_num_seqs = slots;
  const int64_t vocab = bench.unknown_token + 5;
  const auto drafter = disturbed(model, 9, 0.3);
  bench.engine = device ? device_engine(vocab, model, drafter, options)
                        : fake_engine(vocab, model, drafter, options);
  bench.engine->tokenizer = std::move(tokenizer);
  return bench;
}

Request request_of(Tokens prompt, int k, bool sampled) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = sampled ? 1.0 : 0.0, .seed = 11, .max_tokens = 40},
          .speculation = {.num_speculative_tokens = k}};
}

Request bad_request(Fault fault, int k) {
  Request request = request_of({kBad}, k, false);
  if (fault == Fault::kAllowed || fault == Fault::kAccept) {
    request.filter = std::make_shared<FaultyFilter>(kGoodTokens, fault == Fault::kAllowed);
  }
  return request;
}

std::vector<Request> neighbours() {
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i) requests.push_back(request_of({i, 3}, i % 4, i % 2 == 1));
  return requests;
}

class Containment : public ::testing::TestWithParam<std::tuple<Fault, bool>> {};

TEST_P(Containment, AFaultIsItsRequestsOwn) {
  const auto [fault, device] = GetParam();
  std::vector<Tokens> expected;
  const Bench alone = make_bench(Fault::kNone, false, 1);
  for (const Request& request : neighbours())
    expected.push_back(run(*alone.engine, request).tokens);
  const Tokens fine = run(*alone.engine, request_of({kBad}, 0, false)).tokens;
  for (const int k : {0, 3}) {
    const Bench bench = make_bench(fault, device, 4);
    Scheduler scheduler(*bench.engine, {.prefix_cache_bytes = 1 << 20});
    std::map<uint64_t, Completion> done;
    const auto submit = [&](const Request& request) {
      return scheduler
          .submit({.request = request,
                   .on_finish =
                       [&](Completion&& completion) {
                         const uint64_t id = completion.id;
                         EXPECT_TRUE(done.emplace(id, std::move(completion)).second);
                       }})
          .id;
    };
    std::vector<uint64_t> ids;
    const auto requests = neighbours();
    for (std::size_t i = 0; i < 3; ++i) ids.push_back(submit(requests[i]));
    const uint64_t bad = submit(bad_request(fault, k));
    for (std::size_t i = 3; i < requests.size(); ++i) ids.push_back(submit(requests[i]));
    while (scheduler.step()) {
    }
    const Completion& failed = done.at(bad);
    ASSERT_TRUE(failed.error);
    EXPECT_THROW(std::rethrow_exception(failed.error), Error);
    EXPECT_EQ(failed.result.finish_reason, FinishReason::kAbort);
    EXPECT_EQ(failed.result.stop_reason, "error");
    ASSERT_GE(failed.result.tokens.size(), std::size_t{kGoodTokens});
    EXPECT_TRUE(std::equal(fine.begin(), fine.begin() + kGoodTokens, failed.result.tokens.begin()));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Completion& completion = done.at(ids[i]);
      EXPECT_FALSE(completion.error);
      EXPECT_EQ(completion.result.tokens, expected[i]) << "neighbour " << i << ", k = " << k;
    }
    const SchedulerMetrics metrics = scheduler.metrics();
    EXPECT_EQ(metrics.failed, 1);
    EXPECT_EQ(metrics.failed_steps, 0);
    EXPECT_EQ(metrics.running, 0);
    if (device) {
      EXPECT_GT(device_of(*bench.engine).launches, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OnTheHost, Containment,
                         ::testing::Combine(::testing::Values(Fault::kAllowed, Fault::kAccept,
                                                              Fault::kText, Fault::kNotANumber),
                                            ::testing::Values(false)));
INSTANTIATE_TEST_SUITE_P(OnADevice, Containment,
                         ::testing::Combine(::testing::Values(Fault::kAllowed, Fault::kText,
                                                              Fault::kNotANumber),
                                            ::testing::Values(true)));

// Fails what it is told to.
class BrokenRuntime final : public FakeRuntime {
 public:
  using FakeRuntime::FakeRuntime;
  void reset(int slot) override {
    if (fail_resets > 0 && --fail_resets == 0) throw injected("no reset", "slot");
    FakeRuntime::reset(slot);
  }
  runtime::Snapshot save(int slot, int64_t parent) override {
    ++saves;
    if (fail_saves) throw std::bad_alloc();
    return FakeRuntime::save(slot, parent);
  }
  void extend(std::span<const runtime::Extend> batch) override {
    if (fail_extends) throw injected("the device is gone", "extend");
    FakeRuntime::extend(batch);
  }
  int fail_resets = 0;
  int saves = 0;
  bool fail_saves = false;
  bool fail_extends = false;
};

struct Broken {
  std::unique_ptr<Engine> engine = fake_engine<BrokenRuntime>(24, random_logits(4), nullptr);
  BrokenRuntime& runtime = static_cast<BrokenRuntime&>(*engine->runtime);
  Scheduler scheduler{*engine, {.prefix_cache_bytes = 1 << 20}};
  std::map<uint64_t, Completion> done = {};

  uint64_t submit(int32_t first) {
    return scheduler
        .submit({.request = request_of({first, 2, 3}, 0, false),
                 .on_finish =
                     [this](Completion&& completion) {
                       const uint64_t id = completion.id;
                       done.emplace(id, std::move(completion));
                     }})
        .id;
  }
  void run_dry() {
    while (scheduler.step()) {
    }
  }
};

TEST(Survival, ASlotThatCannotBeFilledFailsItsRequest) {
  Broken broken;
  const uint64_t first = broken.submit(1);
  broken.scheduler.step();
  broken.runtime.fail_resets = 1;
  const uint64_t bad = broken.submit(4);
  const uint64_t next = broken.submit(5);
  broken.run_dry();
  EXPECT_TRUE(broken.done.at(bad).error);
  EXPECT_EQ(broken.done.at(bad).result.stop_reason, "error");
  for (const uint64_t id : {first, next}) {
    EXPECT_FALSE(broken.done.at(id).error);
    EXPECT_EQ(broken.done.at(id).result.tokens.size(), 40U);
  }
}

TEST(Survival, ASnapshotThatFailsCostsNothingButItself) {
  Broken broken;
  broken.runtime.fail_saves = true;
  const uint64_t id = broken.submit(1);
  broken.run_dry();
  EXPECT_GT(broken.runtime.saves, 0);
  EXPECT_FALSE(broken.done.at(id).error);
  EXPECT_EQ(broken.done.at(id).result.tokens.size(), 40U);
}

// What a step throws is nobody's own. It is counted until steps work again.
TEST(Survival, FailedStepsAreCounted) {
  Broken broken;
  broken.runtime.fail_extends = true;
  for (int i = 0; i < 3; ++i) broken.submit(i);
  broken.run_dry();
  broken.submit(1);
  broken.run_dry();
  EXPECT_EQ(broken.done.size(), 4U);
  EXPECT_EQ(broken.scheduler.metrics().failed, 4);
  EXPECT_EQ(broken.scheduler.metrics().failed_steps_in_a_row, 2);
  broken.runtime.fail_extends = false;
  const uint64_t well = broken.submit(1);
  broken.run_dry();
  EXPECT_FALSE(broken.done.at(well).error);
  EXPECT_EQ(broken.scheduler.metrics().failed_steps_in_a_row, 0);
  EXPECT_EQ(broken.scheduler.metrics().failed_steps, 2);
}

}  // namespace
}  // namespace levin::engine
