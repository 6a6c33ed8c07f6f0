// Requests that come and go, on a fake runtime: what each puts out is its own business whatever
// happens around it, and each ends exactly once.
#include "engine/scheduler.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "core/error.h"
#include "engine/stream.h"
#include "fake_runtime.h"

namespace levin::engine {
namespace {

using namespace std::chrono_literals;
using testing::disturbed;
using testing::fake_engine;
using testing::fake_options;
using testing::FakeRuntime;
using testing::random_logits;
using testing::run;
using testing::Tokens;

constexpr int64_t kVocab = 24;

std::unique_ptr<Engine> make_engine(int slots = 4, int rows = 64) {
  runtime::Options options = fake_options();
  options.max_num_seqs = slots;
  options.max_extend_tokens = rows;
  return fake_engine(kVocab, random_logits(4), disturbed(random_logits(4), 9, 0.3), options);
}

Request make_request(std::mt19937& random) {
  Tokens prompt(1 + random() % 150);
  // Few beginnings, so that prefixes are shared.
  std::iota(prompt.begin(), prompt.end(), static_cast<int32_t>(random() % 3));
  for (int32_t& token : prompt) token %= 24;
  prompt.back() = static_cast<int32_t>(random() % 24);
  return {.prompt = prompt,
          .sampling = {.temperature = random() % 3 == 0 ? 0.0 : 1.0,
                       .seed = random(),
                       .max_tokens = 1 + static_cast<int64_t>(random() % 40)},
          .speculation = {.num_speculative_tokens = static_cast<int>(random() % 8),
                          .adaptive = random() % 2 == 0}};
}

// Completions by id.
struct Inbox {
  std::map<uint64_t, Completion> done;
  std::function<void(Completion&&)> taker() {
    return [this](Completion&& completion) {
      const uint64_t id = completion.id;
      EXPECT_TRUE(done.emplace(id, std::move(completion)).second) << "finished twice";
    };
  }
};

void run_dry(Scheduler& scheduler) {
  while (scheduler.step()) {
  }
}

// Any mix of arrivals, priorities, chunk sizes, cache and cancelled neighbours.
TEST(Scheduler, NothingAroundARequestChangesItsTokens) {
  const auto alone = make_engine(1);
  std::mt19937 random(1);
  for (int trial = 0; trial < 24; ++trial) {
    const auto engine = make_engine(1 + static_cast<int>(random() % 5), trial % 3 == 0 ? 5 : 64);
    Scheduler scheduler(*engine, {.prefix_cache_bytes = trial % 2 == 0 ? 0 : 20000,
                                  .snapshot_stride = 16,
                                  .snapshot_gap = 4,
                                  .snapshot_outputs = trial % 4 == 1,
                                  .decode_slowdown = trial % 5 == 0 ? 0.0 : 1.5});
    Inbox inbox;
    std::map<uint64_t, Request> requests;
    std::vector<uint64_t> cancelled;
    for (int i = 0; i < 30; ++i) {
      Submission submission{.request = make_request(random),
                            .priority = static_cast<int>(random() % 3),
                            .use_prefix_cache = random() % 8 != 0,
                            .on_finish = inbox.taker()};
      const Request request = submission.request;
      const Submitted submitted = scheduler.submit(std::move(submission));
      ASSERT_EQ(submitted.refusal, Refusal::kNone);
      requests.emplace(submitted.id, request);
      for (std::size_t steps = random() % 6; steps > 0; --steps) scheduler.step();
      if (random() % 6 == 0) {
        cancelled.push_back(1 + random() % submitted.id);
        scheduler.cancel(cancelled.back());
      }
    }
    run_dry(scheduler);
    ASSERT_EQ(inbox.done.size(), requests.size());
    for (const auto& [id, request] : requests) {
      const Result& result = inbox.done.at(id).result;
      const Result expected = run(*alone, request);
      Tokens tokens = expected.tokens;
      if (result.finish_reason == FinishReason::kAbort) {
        EXPECT_EQ(result.stop_reason, "cancelled");
        EXPECT_NE(std::find(cancelled.begin(), cancelled.end(), id), cancelled.end());
        ASSERT_LE(result.tokens.size(), tokens.size());
        tokens.resize(result.tokens.size());
      } else {
        EXPECT_EQ(result.finish_reason, expected.finish_reason);
      }
      ASSERT_EQ(result.tokens, tokens) << "trial " << trial << ", request " << id;
    }
    const SchedulerMetrics metrics = scheduler.metrics();
    EXPECT_EQ(metrics.submitted, 30);
    EXPECT_EQ(metrics.running, 0);
    EXPECT_EQ(metrics.waiting, 0);
    EXPECT_EQ(metrics.finished_stop + metrics.finished_length + metrics.finished_abort, 30);
    if (trial % 2 == 1) {
      EXPECT_GT(metrics.prefix_cache.hits, 0);
    }
  }
}

TEST(Scheduler, PrioritiesThenArrival) {
  const auto engine = make_engine(1);
  Scheduler scheduler(*engine, {});
  std::vector<uint64_t> order;
  std::mt19937 random(2);
  const auto submit = [&](int priority) {
    return scheduler
        .submit({.request = make_request(random),
                 .priority = priority,
                 .on_finish = [&](Completion&& done) { order.push_back(done.id); }})
        .id;
  };
  const uint64_t late = submit(5);
  const uint64_t first = submit(0);
  const uint64_t second = submit(0);
  const uint64_t soonest = submit(-1);
  run_dry(scheduler);
  EXPECT_EQ(order, (std::vector<uint64_t>{soonest, first, second, late}));
  EXPECT_EQ(scheduler.metrics().preemptions, 0);
}

TEST(Scheduler, ThePreemptedGoOnWhereTheyWere) {
  std::vector<int64_t> read_afterwards;
  for (const int64_t cache : {0, 100000}) {
    const auto engine = make_engine(2);
    auto& fake = static_cast<FakeRuntime&>(*engine->runtime);
    Scheduler scheduler(*engine, {.prefix_cache_bytes = cache});
    Inbox inbox;
    Request request = {.prompt = Tokens(30, 3),
                       .sampling = {.temperature = 0, .max_tokens = 60},
                       .speculation = {.num_speculative_tokens = 2}};
    Tokens streamed;
    request.on_tokens = [&](std::span<const int32_t> tokens) {
      streamed.insert(streamed.end(), tokens.begin(), tokens.end());
      return true;
    };
    const uint64_t low =
        scheduler.submit({.request = request, .priority = 1, .on_finish = inbox.taker()}).id;
    Request urgent = request;
    urgent.on_tokens = {};
    for (int i = 0; i < 10; ++i) scheduler.step();
    const std::size_t before = streamed.size();
    EXPECT_GT(before, 5U);
    std::vector<uint64_t> high;
    for (int i = 0; i < 2; ++i) {
      urgent.prompt[0] = 5 + i;
      high.push_back(
          scheduler.submit({.request = urgent, .priority = 0, .on_finish = inbox.taker()}).id);
    }
    scheduler.step();
    EXPECT_EQ(scheduler.metrics().running, 2);
    EXPECT_EQ(scheduler.metrics().waiting, 1);
    EXPECT_EQ(streamed.size(), before);
    const int64_t extended = fake.extended_tokens;
    run_dry(scheduler);
    const Result& result = inbox.done.at(low).result;
    EXPECT_EQ(result.preemptions, 1);
    EXPECT_EQ(inbox.done.at(high[0]).result.preemptions, 0);
    EXPECT_EQ(streamed, result.tokens);
    request.on_tokens = {};
    EXPECT_EQ(result.tokens, run(*make_engine(1), request).tokens);
    EXPECT_EQ(scheduler.metrics().preemptions, 1);
    read_afterwards.push_back(fake.extended_tokens - extended);
  }
  // With a cache the prompt and the first part of the output are not read again.
  EXPECT_GE(read_afterwards[0] - read_afterwards[1], 30 + 5);
}

TEST(Scheduler, QueueLimitDrainAndStop) {
  const auto engine = make_engine(2);
  Inbox inbox;
  std::mt19937 random(3);
  {
    Scheduler scheduler(*engine, {.max_waiting = 3});
    const auto submit = [&] {
      return scheduler.submit({.request = make_request(random), .on_finish = inbox.taker()});
    };
    for (int i = 0; i < 5; ++i) EXPECT_EQ(submit().refusal, Refusal::kNone);
    EXPECT_EQ(submit().refusal, Refusal::kQueueFull);
    run_dry(scheduler);
    EXPECT_EQ(submit().refusal, Refusal::kNone);
    scheduler.drain();
    EXPECT_EQ(submit().refusal, Refusal::kDraining);
    scheduler.run();  // returns
    EXPECT_EQ(inbox.done.size(), 6U);
    for (const auto& [id, done] : inbox.done) {
      EXPECT_EQ(done.result.finish_reason, FinishReason::kLength);
    }
    const SchedulerMetrics metrics = scheduler.metrics();
    EXPECT_EQ(metrics.refused_queue_full, 1);
    EXPECT_EQ(metrics.refused_draining, 1);
    EXPECT_EQ(metrics.submitted, 6);
  }
  inbox.done.clear();
  {
    Scheduler scheduler(*engine, {});
    for (int i = 0; i < 5; ++i) {
      scheduler.submit({.request = make_request(random), .on_finish = inbox.taker()});
    }
    scheduler.step();
    scheduler.stop();
    scheduler.run();
    EXPECT_EQ(inbox.done.size(), 5U);
  }
  inbox.done.clear();
  {
    Scheduler scheduler(*engine, {});
    for (int i = 0; i < 5; ++i) {
      scheduler.submit({.request = make_request(random), .on_finish = inbox.taker()});
    }
    scheduler.step();
  }
  EXPECT_EQ(inbox.done.size(), 5U);  // by the destructor
  EXPECT_EQ(inbox.done.rbegin()->second.result.stop_reason, "stopped");
}

TEST(Scheduler, DeadlinesAndCancellationsFreeTheSlotBeforeTheNextStep) {
  const auto engine = make_engine(1);
  auto& fake = static_cast<FakeRuntime&>(*engine->runtime);
  Scheduler scheduler(*engine, {});
  Inbox inbox;
  const Request request = {.prompt = {1, 2, 3}, .sampling = {.temperature = 0, .max_tokens = 200}};
  const uint64_t running = scheduler.submit({.request = request, .on_finish = inbox.taker()}).id;
  const uint64_t waiting = scheduler.submit({.request = request, .on_finish = inbox.taker()}).id;
  const uint64_t late = scheduler
                            .submit({.request = request,
                                     .deadline = Sequence::Clock::now() + 20ms,
                                     .on_finish = inbox.taker()})
                            .id;
  scheduler.step();
  scheduler.cancel(waiting);
  scheduler.cancel(12345);
  scheduler.step();
  EXPECT_EQ(inbox.done.at(waiting).result.stop_reason, "cancelled");
  EXPECT_TRUE(inbox.done.at(waiting).result.tokens.empty());
  std::this_thread::sleep_for(25ms);
  scheduler.step();
  EXPECT_EQ(inbox.done.at(late).result.stop_reason, "deadline");
  const int extends = fake.extends;
  scheduler.cancel(running);
  EXPECT_FALSE(scheduler.step());
  EXPECT_EQ(fake.extends, extends);
  EXPECT_EQ(inbox.done.at(running).result.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(inbox.done.at(running).result.tokens.size(), 3U);
  const uint64_t timed = scheduler
                             .submit({.request = request,
                                      .deadline = Sequence::Clock::now() + 20ms,
                                      .on_finish = inbox.taker()})
                             .id;
  scheduler.step();
  std::this_thread::sleep_for(25ms);
  EXPECT_FALSE(scheduler.step());
  EXPECT_EQ(inbox.done.at(timed).result.stop_reason, "deadline");
  EXPECT_EQ(inbox.done.at(timed).result.tokens.size(), 1U);
}

TEST(Scheduler, MoreSequencesThanSlotsAreClamped) {
  const auto engine = make_engine(3);
  Scheduler scheduler(*engine, {.max_num_seqs = 1024});
  EXPECT_EQ(scheduler.metrics().max_num_seqs, 3);
  std::mt19937 random(4);
  for (int i = 0; i < 9; ++i) scheduler.submit({.request = make_request(random)});
  scheduler.step();
  EXPECT_EQ(scheduler.metrics().running, 3);
  run_dry(scheduler);
  Scheduler fewer(*engine, {.max_num_seqs = 2});
  for (int i = 0; i < 9; ++i) fewer.submit({.request = make_request(random)});
  fewer.step();
  EXPECT_EQ(fewer.metrics().running, 2);
}

TEST(Scheduler, RefusesWhatCannotRun) {
  const auto engine = make_engine();
  Scheduler scheduler(*engine, {});
  EXPECT_THROW(scheduler.submit({.request = {.prompt = {}}}), Error);
  EXPECT_THROW(scheduler.submit({.request = {.prompt = {99}}}), Error);
  EXPECT_THROW(scheduler.submit({.request = {.prompt = {1}}, .turn_ends = {2}}), Error);
  EXPECT_FALSE(scheduler.step());
  EXPECT_EQ(scheduler.metrics().submitted, 0);
}

// A step that fails takes those with it that were in it, and nobody else.
TEST(Scheduler, AFailedStepIsSurvived) {
  const auto good = random_logits(4);
  const auto model = [=](std::span<const int32_t> history, std::span<float> logits) {
    good(history, logits);
    if (history.size() > 40) throw std::runtime_error("the device is gone");
  };
  runtime::Options options = fake_options();
  options.max_num_seqs = 2;
  const auto engine = fake_engine(kVocab, model, nullptr, options);
  Scheduler scheduler(*engine, {.prefix_cache_bytes = 100000});
  Inbox inbox;
  const auto submit = [&](std::size_t length, int64_t tokens) {
    return scheduler
        .submit({.request = {.prompt = Tokens(length, 2),
                             .sampling = {.temperature = 0, .max_tokens = tokens}},
                 .on_finish = inbox.taker()})
        .id;
  };
  const uint64_t bad = submit(30, 100);
  const uint64_t beside = submit(3, 100);
  const uint64_t after = submit(3, 20);
  run_dry(scheduler);
  EXPECT_TRUE(inbox.done.at(bad).error);
  EXPECT_TRUE(inbox.done.at(beside).error);
  EXPECT_EQ(inbox.done.at(bad).result.stop_reason, "error");
  EXPECT_FALSE(inbox.done.at(after).error);
  EXPECT_EQ(inbox.done.at(after).result.tokens.size(), 20U);
  EXPECT_EQ(scheduler.metrics().failed, 2);
}

TEST(Scheduler, CallbacksMayThrowOrSubmit) {
  const auto engine = make_engine(2);
  Scheduler scheduler(*engine, {});
  Inbox inbox;
  Request request = {.prompt = {1}, .sampling = {.temperature = 0, .max_tokens = 5}};
  Request throwing = request;
  throwing.on_tokens = [](std::span<const int32_t>) -> bool { throw std::runtime_error("no"); };
  const uint64_t bad = scheduler.submit({.request = throwing, .on_finish = inbox.taker()}).id;
  uint64_t next = 0;
  scheduler.submit({.request = request, .on_finish = [&](Completion&&) {
                      next = scheduler.submit({.request = request, .on_finish = inbox.taker()}).id;
                      throw std::runtime_error("no");
                    }});
  run_dry(scheduler);
  EXPECT_TRUE(inbox.done.at(bad).error);
  EXPECT_EQ(inbox.done.at(next).result.tokens.size(), 5U);
}

// --- streams ---

TEST(Stream, HasEverythingInOrder) {
  const auto engine = make_engine(2);
  Scheduler scheduler(*engine, {});
  std::thread thread([&] { scheduler.run(); });
  int notified = 0;
  const Request request = {.prompt = {1, 2}, .sampling = {.temperature = 0, .max_tokens = 50}};
  Submission submission{.request = request};
  std::atomic<int> ready = 0;
  const auto stream = Stream::attach(submission, 1 << 20, [&] { ++ready; });
  scheduler.submit(std::move(submission));
  Tokens tokens;
  Stream::Piece piece;
  while (true) {
    const Stream::Status status = stream->read(piece, 10s);
    ASSERT_NE(status, Stream::Status::kTimeout);
    if (status == Stream::Status::kEnd) break;
    ++notified;
    tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
  }
  scheduler.drain();
  thread.join();
  EXPECT_EQ(tokens, stream->completion().result.tokens);
  EXPECT_EQ(tokens, run(*make_engine(1), request).tokens);
  EXPECT_EQ(stream->read(piece, 1ms), Stream::Status::kEnd);
  EXPECT_GE(ready.load(), notified);
  EXPECT_FALSE(stream->overflowed());
}

TEST(Stream, OneThatIsNotReadIsGivenUpAndNobodyWaits) {
  const auto engine = make_engine(2);
  Scheduler scheduler(*engine, {});
  const Request request = {.prompt = {1, 2}, .sampling = {.temperature = 0, .max_tokens = 200}};
  Submission slow{.request = request};
  Submission quick{.request = request};
  const auto slow_stream = Stream::attach(slow, 20 * sizeof(int32_t));
  const auto quick_stream = Stream::attach(quick);
  Stream::Piece piece;
  EXPECT_EQ(quick_stream->read(piece, 1ms), Stream::Status::kTimeout);
  scheduler.submit(std::move(slow));
  scheduler.submit(std::move(quick));
  run_dry(scheduler);
  EXPECT_TRUE(slow_stream->overflowed());
  EXPECT_EQ(slow_stream->read(piece, 1ms), Stream::Status::kPiece);
  EXPECT_EQ(piece.tokens.size(), 20U);
  EXPECT_EQ(slow_stream->read(piece, 1ms), Stream::Status::kEnd);
  EXPECT_EQ(slow_stream->completion().result.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(quick_stream->read(piece, 1ms), Stream::Status::kPiece);
  EXPECT_EQ(piece.tokens.size(), 200U);
}

// --- many threads ---

TEST(SchedulerThreads, ManySubmittersAndCancellers) {
  const auto engine = make_engine(8);
  Scheduler scheduler(
      *engine,
      {.max_waiting = 40, .prefix_cache_bytes = 50000, .snapshot_stride = 16, .snapshot_gap = 4});
  std::thread engine_thread([&] { scheduler.run(); });
  std::atomic<bool> watching = true;
  std::thread watcher([&] {
    while (watching) {
      const SchedulerMetrics metrics = scheduler.metrics();
      EXPECT_LE(metrics.running, 8);
      EXPECT_GE(metrics.waiting, 0);
      std::this_thread::yield();
    }
  });
  std::atomic<int> accepted = 0;
  std::atomic<int> refused = 0;
  std::atomic<int> finished = 0;
  std::mutex mutex;
  std::vector<std::pair<Request, Tokens>> whole;
  std::vector<std::thread> clients;
  for (unsigned client = 0; client < 6; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937 random(100 + client);
      for (int i = 0; i < 60; ++i) {
        Submission submission{.request = make_request(random),
                              .priority = static_cast<int>(random() % 2)};
        const Request request = submission.request;
        const auto stream = Stream::attach(submission, random() % 5 == 0 ? 40 : 1 << 20);
        const Submitted submitted = scheduler.submit(std::move(submission));
        if (submitted.refusal != Refusal::kNone) {
          ++refused;
          continue;
        }
        ++accepted;
        const bool vanish = random() % 5 == 0;
        const std::size_t most = random() % 20;
        Tokens tokens;
        Stream::Piece piece;
        bool cancelled = false;
        while (stream->read(piece, 60s) == Stream::Status::kPiece) {
          tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
          if (vanish && !cancelled && tokens.size() > most) {
            scheduler.cancel(submitted.id);
            cancelled = true;
          }
        }
        ++finished;
        if (stream->completion().result.finish_reason == FinishReason::kAbort) {
          EXPECT_TRUE(cancelled || stream->overflowed());
        } else {
          const std::lock_guard lock(mutex);
          whole.emplace_back(request, tokens);
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  watching = false;
  watcher.join();
  scheduler.drain();
  engine_thread.join();
  EXPECT_EQ(finished.load(), accepted.load());
  EXPECT_EQ(accepted.load() + refused.load(), 360);
  EXPECT_GT(whole.size(), 100U);
  const auto alone = make_engine(1);
  for (const auto& [request, tokens] : whole) ASSERT_EQ(run(*alone, request).tokens, tokens);
}

}  // namespace
}  // namespace levin::engine
