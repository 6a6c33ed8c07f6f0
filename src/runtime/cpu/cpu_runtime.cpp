// The fast CPU runtime: repacked weights, one team of threads, one run of it for each call.
#include "runtime/cpu/cpu_runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/memory.h"
#include "runtime/cpu/blocks.h"
#include "runtime/cpu/draft.h"
#include "runtime/cpu/memory_plan.h"
#include "runtime/cpu/pass.h"
#include "runtime/cpu/plan.h"
#include "runtime/cpu/state.h"
#include "runtime/cpu/weights.h"
#include "runtime/cpu/workspace.h"
#include "runtime/validate.h"

namespace levin::runtime::cpu {
namespace {

constexpr int64_t kMostTaps = 16;

KvCache& layer_cache(State& state, int slot, int layer) {
  return state[slot].kv[static_cast<std::size_t>(layer)];
}

const model::Model& checked(const std::shared_ptr<const model::Model>& model) {
  const model::Config& config = model->config;
  if (config.mamba_num_heads > 0 && config.conv_kernel > kMostTaps) {
    throw Error({.what = "no CPU kernel for this convolution",
                 .where = "conv_kernel",
                 .expected = fmt::format("at most {}", kMostTaps),
                 .found = fmt::format("{}", config.conv_kernel),
                 .hint = "use --runtime reference"});
  }
  return *model;
}

class CpuRuntime final : public Runtime {
 public:
  CpuRuntime(std::shared_ptr<const model::Model> model, const Options& options, Isa isa);

  const model::Model& model() const override { return *model_; }
  const Options& options() const override { return options_; }
  std::string description() const override;
  std::vector<PlanEntry> plan() const override { return describe_plan(*model_, weights_, isa_); }
  int64_t memory_bytes() const override;
  void set_observer(Observer observer) override { watcher_.set(std::move(observer)); }
  bool set_phase_recorder(PhaseRecorder* recorder) override {
    shared_.recorder = recorder;
    return true;
  }

  void reset(int slot) override;
  int64_t length(int slot) const override;
  void extend(std::span<const Extend> batch) override;
  std::span<const float> logits(int entry, int row) const override;
  void rewind(int slot, int64_t length) override;
  void draft(std::span<const Draft> batch) override;
  std::span<const int32_t> drafts(int entry) const override { return draft_->drafts(entry); }
  std::span<const float> draft_logits(int entry, int step) const override {
    return draft_->logits(entry, step);
  }

  bool has_snapshots() const override { return true; }
  SnapshotBytes snapshot_bytes(int64_t parent, int64_t length) const override {
    return state_.snapshot_bytes(parent, length);
  }
  Snapshot save(int slot, int64_t parent) override;
  void restore(int slot, std::span<const Snapshot> chain) override;

 private:
  void lay_out(std::span<const Extend> batch);
  void run_backbone(int thread, std::span<const Extend> batch);
  void run_layer(Pass& pass, int layer);
  void run_head(Pass& pass);
  void advance(std::span<const Extend> batch);

  std::shared_ptr<const model::Model> model_;
  Isa isa_;
  Options options_;
  ThreadTeam team_;
  Weights weights_;
  Workspace work_;
  State state_;
  Watcher watcher_;
  Shared shared_;
  std::optional<DraftHead> draft_;

  int64_t count_ = 0;  // rows of the current pass
  std::vector<Segment> segments_;
  std::vector<int32_t> logits_index_;  // rows of the pass that logits are asked for
  std::vector<int64_t> first_logits_;  // by batch entry: its first row of logits_
  Rows logits_;                        // [rows][vocab]
  Arena logits_arena_;
};

int64_t rows_of(const Options& options) {
  return std::max(options.max_extend_tokens, options.max_num_seqs);
}

CpuRuntime::CpuRuntime(std::shared_ptr<const model::Model> model, const Options& options, Isa isa)
    : model_(std::move(model)),
      isa_(isa),
      options_(resolve_options(checked(model_), options)),
      team_(options_.threads, options_.pin_threads),
      weights_(*model_, options_.mtp, kernels(isa).integer_products),
      work_(model_->config, options_, weights_, rows_of(options_)),
      state_(model_->config, options_),
      shared_{model_->config, options_, kernels(isa), team_, work_, watcher_},
      first_logits_(static_cast<std::size_t>(options_.max_num_seqs)) {
  if (options_.mtp) {
    draft_.emplace(*model_, options_, *weights_.mtp, weights_.lm_head, state_, work_.max_rows);
  }
  segments_.reserve(static_cast<std::size_t>(options_.max_num_seqs));
  logits_index_.reserve(static_cast<std::size_t>(options_.max_logits_rows));
  Layout layout;
  layout.rows(logits_, options_.max_logits_rows, model_->config.vocab_size);
  logits_arena_ = layout.allocate();
  announce({.weights = weights_.bytes(),
            .rest = memory_bytes() - weights_.bytes(),
            .available = available_memory_bytes()});
  weights_.pack(team_);
}

std::string CpuRuntime::description() const {
  return fmt::format("fast CPU runtime: {}, {} thread{}{}", name_of(isa_), team_.size(),
                     team_.size() == 1 ? "" : "s",
                     options_.pin_threads && team_.size() > 1 ? ", pinned" : "");
}

int64_t CpuRuntime::memory_bytes() const {
  return weights_.bytes() + work_.bytes() + state_.bytes() + logits_arena_.bytes() +
         (draft_ ? draft_->bytes() : 0);
}

void CpuRuntime::reset(int slot) {
  check_slot(options_, slot);
  state_.reset(slot);
}

int64_t CpuRuntime::length(int slot) const {
  check_slot(options_, slot);
  return state_[slot].length;
}

void CpuRuntime::lay_out(std::span<const Extend> batch) {
  segments_.clear();
  logits_index_.clear();
  count_ = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto tokens = static_cast<int64_t>(batch[i].tokens.size());
    segments_.push_back({batch[i].slot, count_, tokens, state_[batch[i].slot].length});
    count_ += tokens;
    first_logits_[i] = static_cast<int64_t>(logits_index_.size());
    for (int64_t row = count_ - batch[i].logits_rows; row < count_; ++row) {
      logits_index_.push_back(static_cast<int32_t>(row));
    }
  }
}

void CpuRuntime::run_layer(Pass& pass, int layer) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const Rows& hidden = work_.hidden;
  pass.enter_layer(layer);
  pass.watch_hidden(layer, hidden, count_);
  if (const auto* mamba = std::get_if<MambaWeights>(&weights.mixer)) {
    run_mamba(pass, *mamba, weights.norm, layer, state_, segments_, hidden, count_);
  } else if (const auto* moe = std::get_if<MoeWeights>(&weights.mixer)) {
    run_moe(pass, *moe, weights.norm, hidden, count_);
  } else if (const auto* attention = std::get_if<AttentionWeights>(&weights.mixer)) {
    run_attention(pass, *attention, weights.norm, layer, layer_cache, state_, segments_, hidden,
                  count_, 0);
  } else {
    run_mlp(pass, std::get<FeedForward>(weights.mixer), weights.norm, hidden, count_);
  }
}

// norm_f of all rows, which the draft head needs, and logits of those asked for.
void CpuRuntime::run_head(Pass& pass) {
  const Rows& normed = pass.small() ? pass.own().hidden : work_.final;
  pass.enter_layer(-1);
  pass.phase(Phase::kHead);
  pass.normalize(work_.hidden, count_, model_->norm_f.data(), normed);
  if (pass.small() && pass.thread() == 0) {
    std::copy_n(normed.data, count_ * normed.stride, work_.final.data);
  }
  pass.staged();
  pass.watch_hidden(static_cast<int>(weights_.layers.size()), normed, count_);
  const auto wanted = static_cast<int64_t>(logits_index_.size());
  if (wanted > 0) {
    const Matrix& lm_head = weights_.lm_head;
    const StageBuffer& buffer = pass.stage_buffer(0);
    const Range rows = pass.rows_to_stage(wanted);
    pass.pack(lm_head, normed, logits_index_.data(), rows.begin, rows.end, buffer);
    pass.staged();
    pass.watch_input(lm_head, normed, wanted, logits_index_.data());
    pass.multiply(lm_head, {buffer.tiles, buffer.scales, wanted}, store_to(logits_));
  }
  pass.barrier();
}

void CpuRuntime::run_backbone(int thread, std::span<const Extend> batch) {
  Pass pass(shared_, thread, count_);
  const auto width = static_cast<std::size_t>(model_->config.hidden_size);
  const Range rows = share(count_, thread, team_.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Segment& segment = segments_[i];
    const int64_t begin = std::max(rows.begin, segment.first_row);
    const int64_t end = std::min(rows.end, segment.first_row + segment.rows);
    for (int64_t row = begin; row < end; ++row) {
      const auto at = static_cast<std::size_t>(row - segment.first_row);
      model::dequantize_row(model_->embeddings, batch[i].tokens[at], {work_.hidden[row], width});
    }
  }
  pass.barrier();
  const auto layers = static_cast<int>(weights_.layers.size());
  for (int layer = 0; layer < layers; ++layer) run_layer(pass, layer);
  run_head(pass);
}

// The slots after a pass: short pieces are only logged, long ones are in the Mamba states.
void CpuRuntime::advance(std::span<const Extend> batch) {
  if (draft_) draft_->finish_extend(batch, segments_, work_.final);
  for (const Segment& segment : segments_) {
    Slot& slot = state_[segment.slot];
    const bool logged = segment.rows <= options_.max_rewind;
    slot.kept = logged ? slot.length : slot.length + segment.rows;
    slot.rewindable_to = slot.kept;
    slot.length += segment.rows;
    slot.log = 1 - slot.log;
  }
}

void CpuRuntime::extend(std::span<const Extend> batch) {
  check_extend(*this, batch);
  lay_out(batch);
  if (draft_) draft_->plan_extend(batch, segments_, work_.final);
  if (shared_.recorder != nullptr) {
    shared_.recorder->begin_step(StepKind::kExtend, static_cast<int>(batch.size()),
                                 static_cast<int>(count_));
  }
  team_.run([&](int thread) {
    if (draft_) draft_->run_before(shared_, thread);
    run_backbone(thread, batch);
    if (draft_) draft_->run_after(shared_, thread);
  });
  advance(batch);
  if (shared_.recorder != nullptr) shared_.recorder->end_step();
  watcher_.rethrow();
}

std::span<const float> CpuRuntime::logits(int entry, int row) const {
  return {logits_[first_logits_[static_cast<std::size_t>(entry)] + row],
          static_cast<std::size_t>(model_->config.vocab_size)};
}

void CpuRuntime::rewind(int index, int64_t length) {
  check_slot(options_, index);
  Slot& slot = state_[index];
  check_rewind(index, length, slot.rewindable_to, slot.length);
  if (length == slot.length) return;
  slot.length = length;
  if (draft_) draft_->rewind(index, length);
}

Snapshot CpuRuntime::save(int slot, int64_t parent) {
  check_save(*this, slot, parent);
  return state_.save(slot, parent);
}

void CpuRuntime::restore(int slot, std::span<const Snapshot> chain) {
  check_restore(*this, slot, chain);
  state_.restore(slot, chain);
}

void CpuRuntime::draft(std::span<const Draft> batch) {
  check_draft(*this, batch);
  if (shared_.recorder != nullptr) {
    int proposals = 0;
    for (const Draft& entry : batch) proposals += entry.k;
    shared_.recorder->begin_step(StepKind::kDraft, static_cast<int>(batch.size()), proposals);
  }
  draft_->plan_draft(batch);
  team_.run([&](int thread) { draft_->run_draft(shared_, thread); });
  if (shared_.recorder != nullptr) shared_.recorder->end_step();
  watcher_.rethrow();
}

}  // namespace

std::unique_ptr<Runtime> make_runtime(std::shared_ptr<const model::Model> model,
                                      const Options& options, Isa isa) {
  return std::make_unique<CpuRuntime>(std::move(model), options, isa);
}

}  // namespace levin::runtime::cpu

namespace levin::runtime {

std::unique_ptr<Runtime> make_cpu_runtime(std::shared_ptr<const model::Model> model,
                                          const Options& options) {
  return cpu::make_runtime(std::move(model), options, cpu::best_isa());
}

}  // namespace levin::runtime
