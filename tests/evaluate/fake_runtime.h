// A runtime whose model is a formula: the logits after a token depend on the two last tokens, so a
// test can compute by hand what an evaluation must find, and a lost state shows.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/runtime.h"

namespace levin::evaluate {

// Logit of `next` after `before`, `last`; `tilt` moves the model away from itself.
inline float fake_logit(int32_t before, int32_t last, int32_t next, float tilt) {
  const auto phase = static_cast<float>(before * 7 + last * 13 + next * 29);
  return 3 * std::sin(phase) + tilt * std::cos(phase * 0.5F);
}

class FakeRuntime : public runtime::Runtime {
 public:
  FakeRuntime(int64_t vocab, runtime::Options options, float tilt = 0)
      : options_(std::move(options)), tilt_(tilt) {
    model_.config.vocab_size = vocab;
    model_.config.max_position_embeddings = 1 << 20;
  }

  const model::Model& model() const override { return model_; }
  const runtime::Options& options() const override { return options_; }
  std::string description() const override { return "fake"; }
  std::vector<runtime::PlanEntry> plan() const override { return {}; }
  int64_t memory_bytes() const override { return 0; }
  void set_observer(runtime::Observer) override {}
  void reset(int) override { tokens_.clear(); }
  int64_t length(int) const override { return static_cast<int64_t>(tokens_.size()); }

  void extend(std::span<const runtime::Extend> batch) override {
    ++extends;
    logits_.clear();
    const runtime::Extend& entry = batch.front();
    largest_extend = std::max(largest_extend, entry.tokens.size());
    for (const int32_t token : entry.tokens) {
      tokens_.push_back(token);
      const int32_t before = tokens_.size() > 1 ? tokens_[tokens_.size() - 2] : 0;
      std::vector<float> row;
      for (int32_t next = 0; next < model_.config.vocab_size; ++next) {
        row.push_back(fake_logit(before, token, next, tilt_));
      }
      logits_.push_back(std::move(row));
    }
    const auto skipped = logits_.size() - static_cast<std::size_t>(entry.logits_rows);
    logits_.erase(logits_.begin(), logits_.begin() + static_cast<std::ptrdiff_t>(skipped));
  }
  std::span<const float> logits(int, int row) const override {
    return logits_.at(static_cast<std::size_t>(row));
  }
  void rewind(int, int64_t length) override { tokens_.resize(static_cast<std::size_t>(length)); }
  void draft(std::span<const runtime::Draft>) override {}
  std::span<const int32_t> drafts(int) const override { return {}; }
  std::span<const float> draft_logits(int, int) const override { return {}; }

  int extends = 0;
  std::size_t largest_extend = 0;

 private:
  model::Model model_;
  runtime::Options options_;
  float tilt_;
  std::vector<int32_t> tokens_;
  std::vector<std::vector<float>> logits_;
};

}  // namespace levin::evaluate
