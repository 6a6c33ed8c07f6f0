// The fake runtime with device rounds: they are computed when they are launched, by the rules of
// runtime/round_rules.h, and come out when they are waited for.
#pragma once

#include <cmath>
#include <deque>
#include <utility>

#include "engine/sampler.h"
#include "fake_runtime.h"
#include "runtime/round.h"

namespace levin::engine::testing {

class DeviceFakeRuntime final : public FakeRuntime, public runtime::DeviceRounds {
 public:
  DeviceFakeRuntime(std::shared_ptr<const model::Model> model, const runtime::Options& options,
                    Logits target, Logits drafter)
      : FakeRuntime(std::move(model), options, std::move(target), std::move(drafter)),
        sampler_(static_cast<int64_t>(vocab())),
        on_device_(slots_.size()) {}

  runtime::DeviceRounds* rounds() override { return this; }

  void reset(int slot) override {
    FakeRuntime::reset(slot);
    ++of(slot).generation;
    of(slot).known = false;
  }
  void extend(std::span<const runtime::Extend> batch) override {
    FakeRuntime::extend(batch);
    for (const runtime::Extend& entry : batch) {
      EXPECT_FALSE(in_flight_for(entry.slot));
      of(entry.slot).known = false;
    }
  }
  void rewind(int slot, int64_t length) override {
    FakeRuntime::rewind(slot, length);
    of(slot).known = false;
  }
  void restore(int slot, std::span<const runtime::Snapshot> chain) override {
    FakeRuntime::restore(slot, chain);
    ++of(slot).generation;
    of(slot).known = false;
  }
  runtime::Snapshot save(int slot, int64_t parent) override {
    // What is in flight has no tokens of it.
    if (of(slot).known && in_flight_for(slot)) {
      EXPECT_EQ(of(slot).tokens.size(), tokens_in(slot).size());
    }
    return FakeRuntime::save(slot, parent);
  }

  int max_rows() const override { return std::min(8, options_.max_extend_tokens); }
  int max_in_flight() const override { return 4; }
  bool samples() const override { return can_sample; }
  bool knows(int slot) const override { return on_device_[static_cast<std::size_t>(slot)].known; }
  void enter(const runtime::RoundStart& start) override {
    OnDevice& on = of(start.slot);
    ASSERT_LE(start.stops.size(), std::size_t{runtime::kMaxRoundStops});
    ASSERT_GT(start.remaining, 0);
    on.known = true;
    on.tokens = tokens_in(start.slot);
    ASSERT_FALSE(on.tokens.empty());
    on.sequence = {};
    on.sequence.active = 1;
    on.sequence.last_token = start.last_token;
    on.sequence.length = static_cast<int32_t>(on.tokens.size());
    on.sequence.remaining = static_cast<int32_t>(start.remaining);
    on.sequence.stop_count = static_cast<int32_t>(start.stops.size());
    std::copy(start.stops.begin(), start.stops.end(), on.sequence.stops);
    on.sequence.sampling = start.sampling;
    on.sequence.synthetic = start.synthetic_rates.empty() ? 0 : 1;
    std::copy(start.synthetic_rates.begin(), start.synthetic_rates.end(), on.sequence.rates);
    ++entered;
  }

  void launch(std::span<const int> slots, int drafts) override {
    ASSERT_LT(in_flight(), max_in_flight());
    ASSERT_LE(static_cast<int>(slots.size()) * (1 + drafts), max_rows());
    Launched& launched = launched_.emplace_back();
    for (const int slot : slots) {
      ASSERT_TRUE(knows(slot));
      OnDevice& on = of(slot);
      launched.generations.push_back(on.generation);
      launched.results.push_back({.slot = slot, .block = round(on, drafts)});
      launched.tokens.push_back(on.tokens);
    }
    ++launches;
    most_in_flight = std::max(most_in_flight, in_flight());
  }

  int in_flight() const override { return static_cast<int>(launched_.size()); }

  const runtime::RoundOutcome& wait() override {
    done_ = std::move(launched_.front());
    launched_.pop_front();
    for (std::size_t i = 0; i < done_.results.size(); ++i) {
      const int slot = done_.results[i].slot;
      if (of(slot).generation != done_.generations[i]) {
        done_.results[i].block = {};
        ++dropped;
      } else {
        slots_[static_cast<std::size_t>(slot)] = {done_.tokens[i], done_.tokens[i].size()};
        if (done_.results[i].block.count == 0) ++idle;
      }
    }
    outcome_ = {.results = done_.results, .draft_seconds = 1e-4, .verify_seconds = 1e-3};
    return outcome_;
  }

  bool can_sample = true;
  int entered = 0;
  int launches = 0;
  int most_in_flight = 0;
  int idle = 0;     // parts of sequences that had ended
  int dropped = 0;  // parts of sequences whose slot was reset

 private:
  struct OnDevice {
    bool known = false;
    int generation = 0;
    Tokens tokens;  // extended
    runtime::RoundSequence sequence;
  };
  struct Launched {
    std::vector<runtime::RoundResult> results;
    std::vector<int> generations;
    std::vector<Tokens> tokens;
  };

  OnDevice& of(int slot) { return on_device_[static_cast<std::size_t>(slot)]; }
  bool in_flight_for(int slot) {
    for (const Launched& launched : launched_) {
      for (std::size_t i = 0; i < launched.results.size(); ++i) {
        if (launched.results[i].slot == slot && launched.generations[i] == of(slot).generation) {
          return true;
        }
      }
    }
    return false;
  }

  int32_t choose(const runtime::RoundSequence& s, const Tokens& history, int row) {
    std::vector<float> logits(vocab());
    target_(history, logits);
    if (!std::isfinite(logits.front())) return -1;  // no numbers: the host is told so
    SamplingParams params;
    params.temperature = s.sampling.greedy ? 0 : 1 / double{s.sampling.inverse_temperature};
    params.top_k = s.sampling.top_k;
    params.top_p = s.sampling.top_p;
    const TokenHistory none(params, static_cast<int64_t>(vocab()), 0);
    return sampler_.choose(logits, {.params = params,
                                    .history = none,
                                    .seed = s.sampling.seed,
                                    .position = runtime::position_after(s, row)});
  }

  runtime::Block round(OnDevice& on, int most_drafts) {
    runtime::RoundSequence& s = on.sequence;
    if (s.active == 0) return {};
    const int32_t drafts = runtime::drafts_of(s, most_drafts);
    Tokens history = on.tokens;
    history.push_back(s.last_token);
    std::vector<int32_t> drafted;
    std::vector<int32_t> chosen;
    Tokens ahead = history;
    for (int i = 0; i < drafts; ++i) {
      std::vector<float> logits(vocab());
      drafter_(ahead, logits);
      drafted.push_back(
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      ahead.push_back(drafted.back());
    }
    for (int row = 0; row <= drafts; ++row) {
      if (row > 0) history.push_back(drafted[static_cast<std::size_t>(row - 1)]);
      chosen.push_back(choose(s, history, row));
    }
    const int32_t last = s.last_token;
    const runtime::Block block = runtime::accept_block(s, drafted.data(), drafts, chosen.data());
    if (block.count > 0) on.tokens.push_back(last);
    for (int i = 0; i + 1 < block.count; ++i) on.tokens.push_back(block.tokens[i]);
    EXPECT_EQ(on.tokens.size(), static_cast<std::size_t>(s.length));
    return block;
  }

  Sampler sampler_;
  std::vector<OnDevice> on_device_;
  std::deque<Launched> launched_;
  Launched done_;
  runtime::RoundOutcome outcome_;
};

inline std::unique_ptr<Engine> device_engine(int64_t vocab, FakeRuntime::Logits target,
                                             FakeRuntime::Logits drafter,
                                             const runtime::Options& options = fake_options()) {
  return fake_engine<DeviceFakeRuntime>(vocab, std::move(target), std::move(drafter), options);
}

inline DeviceFakeRuntime& device_of(const Engine& engine) {
  return static_cast<DeviceFakeRuntime&>(*engine.runtime);
}

}  // namespace levin::engine::testing
