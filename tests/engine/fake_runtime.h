// A runtime whose model is a function of the tokens so far, for testing what the engine does with
// logits and drafts. It checks arguments as every runtime does and remembers how it was used.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "engine/engine.h"
#include "engine/generate.h"
#include "runtime/runtime.h"
#include "runtime/validate.h"

namespace levin::engine::testing {

using Tokens = std::vector<int32_t>;

class FakeRuntime : public runtime::Runtime {
 public:
  // Fills logits [vocab] of the token that follows `history`.
  using Logits = std::function<void(std::span<const int32_t> history, std::span<float> logits)>;

  FakeRuntime(std::shared_ptr<const model::Model> model, const runtime::Options& options,
              Logits target, Logits drafter)
      : model_(std::move(model)),
        options_(options),
        target_(std::move(target)),
        drafter_(std::move(drafter)),
        slots_(static_cast<std::size_t>(options.max_num_seqs)) {
    options_.mtp = drafter_ != nullptr;
    if (options_.max_logits_rows == 0) options_.max_logits_rows = options_.max_extend_tokens;
  }

  const model::Model& model() const override { return *model_; }
  const runtime::Options& options() const override { return options_; }
  std::string description() const override { return "fake"; }
  std::vector<runtime::PlanEntry> plan() const override { return {}; }
  int64_t memory_bytes() const override { return 0; }
  void set_observer(runtime::Observer) override {}

  void reset(int slot) override { slots_.at(static_cast<std::size_t>(slot)) = {}; }
  int64_t length(int slot) const override {
    return static_cast<int64_t>(slots_.at(static_cast<std::size_t>(slot)).tokens.size());
  }

  void extend(std::span<const runtime::Extend> batch) override {
    runtime::check_extend(*this, batch);
    logits_.clear();
    extends += 1;
    for (const runtime::Extend& entry : batch) {
      Slot& slot = slots_[static_cast<std::size_t>(entry.slot)];
      const auto rows = static_cast<std::size_t>(entry.logits_rows);
      const bool short_enough =
          entry.tokens.size() <= static_cast<std::size_t>(options_.max_rewind);
      slot.rewindable_to = slot.tokens.size() + (short_enough ? 0 : entry.tokens.size());
      auto& own = logits_.emplace_back();
      for (std::size_t i = 0; i < entry.tokens.size(); ++i) {
        slot.tokens.push_back(entry.tokens[i]);
        if (i + rows < entry.tokens.size()) continue;
        target_(slot.tokens, own.emplace_back(vocab()));
      }
      extended_tokens += static_cast<int64_t>(entry.tokens.size());
      longest_extend = std::max(longest_extend, entry.tokens.size());
    }
  }
  std::span<const float> logits(int entry, int row) const override {
    return logits_.at(static_cast<std::size_t>(entry)).at(static_cast<std::size_t>(row));
  }

  void rewind(int slot_index, int64_t length) override {
    Slot& slot = slots_.at(static_cast<std::size_t>(slot_index));
    runtime::check_rewind(slot_index, length, static_cast<int64_t>(slot.rewindable_to),
                          static_cast<int64_t>(slot.tokens.size()));
    slot.tokens.resize(static_cast<std::size_t>(length));
  }

  void draft(std::span<const runtime::Draft> batch) override {
    runtime::check_draft(*this, batch);
    drafts_.clear();
    for (const runtime::Draft& entry : batch) {
      Tokens history = slots_[static_cast<std::size_t>(entry.slot)].tokens;
      history.push_back(entry.next_token);
      auto& own = drafts_.emplace_back();
      for (int step = 0; step < entry.k; ++step) {
        std::vector<float> logits(vocab());
        drafter_(history, logits);
        own.push_back(
            static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
        history.push_back(own.back());
      }
    }
  }
  std::span<const int32_t> drafts(int entry) const override {
    return drafts_.at(static_cast<std::size_t>(entry));
  }
  std::span<const float> draft_logits(int, int) const override { return {}; }

  // A snapshot's caches are the tokens of its part; its state is as large as 16 of them.
  bool has_snapshots() const override { return true; }
  runtime::SnapshotBytes snapshot_bytes(int64_t parent, int64_t length) const override {
    return {(length - parent) * kTokenBytes, 16 * kTokenBytes};
  }
  runtime::Snapshot save(int slot, int64_t parent) override {
    runtime::check_save(*this, slot, parent);
    const Tokens& tokens = slots_[static_cast<std::size_t>(slot)].tokens;
    const auto bytes = snapshot_bytes(parent, length(slot));
    const auto part = std::make_shared<std::byte[]>(static_cast<std::size_t>(bytes.caches));
    std::memcpy(part.get(), tokens.data() + parent, static_cast<std::size_t>(bytes.caches));
    return {parent, length(slot), part,
            std::make_shared<std::byte[]>(static_cast<std::size_t>(bytes.state))};
  }
  void restore(int slot, std::span<const runtime::Snapshot> chain) override {
    runtime::check_restore(*this, slot, chain);
    Tokens tokens(static_cast<std::size_t>(chain.back().length));
    for (const runtime::Snapshot& snapshot : chain) {
      std::memcpy(tokens.data() + snapshot.parent, snapshot.caches.get(),
                  static_cast<std::size_t>((snapshot.length - snapshot.parent) * kTokenBytes));
    }
    const std::size_t length = tokens.size();
    slots_[static_cast<std::size_t>(slot)] = {std::move(tokens), length};
  }

  static constexpr int64_t kTokenBytes = sizeof(int32_t);

  const Tokens& tokens_in(int slot) const {
    return slots_.at(static_cast<std::size_t>(slot)).tokens;
  }

  int extends = 0;
  int64_t extended_tokens = 0;
  std::size_t longest_extend = 0;

 protected:
  struct Slot {
    Tokens tokens;
    std::size_t rewindable_to = 0;
  };

  std::size_t vocab() const { return static_cast<std::size_t>(model_->config.vocab_size); }

  std::shared_ptr<const model::Model> model_;
  runtime::Options options_;
  Logits target_;
  Logits drafter_;
  std::vector<Slot> slots_;
  std::vector<std::vector<std::vector<float>>> logits_;
  std::vector<Tokens> drafts_;
};

inline runtime::Options fake_options() {
  return {.max_model_len = 256, .max_num_seqs = 4, .max_extend_tokens = 64, .max_rewind = 8};
}

// An engine around a fake runtime with `vocab` tokens. Without a drafter there is no draft head.
template <typename Runtime = FakeRuntime>
std::unique_ptr<Engine> fake_engine(int64_t vocab, FakeRuntime::Logits target,
                                    FakeRuntime::Logits drafter,
                                    const runtime::Options& options = fake_options()) {
  auto model = std::make_shared<model::Model>();
  model->config.vocab_size = vocab;
  auto engine = std::make_unique<Engine>();
  engine->model = model;
  engine->runtime =
      std::make_unique<Runtime>(model, options, std::move(target), std::move(drafter));
  return engine;
}

// Logits drawn from a normal distribution that depends on the last two tokens and `seed`.
inline FakeRuntime::Logits random_logits(uint32_t seed, float spread = 1.5F) {
  return [=](std::span<const int32_t> history, std::span<float> logits) {
    const auto last = static_cast<uint32_t>(history.back());
    const auto before = history.size() > 1 ? static_cast<uint32_t>(history[history.size() - 2]) : 0;
    std::minstd_rand random(seed + 1000003 * (last + 1) + 7919 * (before + 1));
    random.discard(3);
    std::normal_distribution<float> normal(0.0F, spread);
    for (float& logit : logits) logit = normal(random);
  };
}

// Mostly the other model's logits, sometimes other ones: a drafter that is right now and then.
inline FakeRuntime::Logits disturbed(FakeRuntime::Logits logits, uint32_t seed, double share) {
  return [=](std::span<const int32_t> history, std::span<float> out) {
    logits(history, out);
    std::minstd_rand random(seed + 31 * static_cast<uint32_t>(history.size()) +
                            101 * static_cast<uint32_t>(history.back()));
    random.discard(3);
    if (std::uniform_real_distribution<double>(0, 1)(random) < share) {
      random_logits(seed)(history, out);
    }
  };
}

// Always continues a sequence with the tokens of `script`, in whose end it stays.
inline FakeRuntime::Logits scripted(std::size_t prompt_length, Tokens script) {
  return [=](std::span<const int32_t> history, std::span<float> logits) {
    std::fill(logits.begin(), logits.end(), 0.0F);
    const std::size_t index = std::min(history.size() - prompt_length, script.size() - 1);
    logits[static_cast<std::size_t>(script[index])] = 10.0F;
  };
}

inline Result run(Engine& engine, const Request& request) {
  return std::move(generate(engine, {&request, 1}).front());
}

}  // namespace levin::engine::testing
