// The reference runtime: the model as its papers write it, in float32, one block after the other.
//
//   h = embeddings[token];  for each layer: h += mixer(rmsnorm(h));  logits = lm_head(rmsnorm(h))
//
// It is meant to be read and compared against. Speed comes from threads and a cache-friendly dot
// product only. Memory: 4 bytes for every weight (up to kFloatCacheLimit, linear.h), caches and
// states in float32 whatever dtype they emulate, two Mamba states per slot and layer.
#include "runtime/runtime.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/plural.h"
#include "runtime/reference/context.h"
#include "runtime/reference/linear.h"
#include "runtime/reference/mtp.h"
#include "runtime/reference/norm.h"
#include "runtime/reference/work.h"
#include "runtime/validate.h"

namespace levin::runtime {
namespace reference {
namespace {

// A sequence's place in the runtime. Its states and caches are with the layers.
struct Slot {
  int64_t length = 0;
  int64_t rewindable_to = 0;  // shortest length that rewind() can go back to
};

// States of one layer, by slot; which of the two is used depends on the layer's kind.
struct LayerState {
  std::vector<MambaState> mamba;
  std::vector<KvCache> kv;
};

class ReferenceRuntime final : public Runtime {
 public:
  ReferenceRuntime(std::shared_ptr<const model::Model> model, const Options& options);

  const model::Model& model() const override { return *model_; }
  const Options& options() const override { return options_; }
  std::string description() const override;
  std::vector<PlanEntry> plan() const override;
  int64_t memory_bytes() const override;
  void set_observer(Observer observer) override;

  void reset(int slot) override;
  int64_t length(int slot) const override { return slots_.at(index(slot)).length; }
  void extend(std::span<const Extend> batch) override;
  std::span<const float> logits(int entry, int row) const override;
  void rewind(int slot, int64_t length) override;
  void draft(std::span<const Draft> batch) override;
  std::span<const int32_t> drafts(int entry) const override { return mtp_->drafts(entry); }
  std::span<const float> draft_logits(int entry, int step) const override {
    return mtp_->draft_logits(entry, step);
  }

  bool has_snapshots() const override { return true; }
  SnapshotBytes snapshot_bytes(int64_t parent, int64_t length) const override;
  Snapshot save(int slot, int64_t parent) override;
  void restore(int slot, std::span<const Snapshot> chain) override;

 private:
  static std::size_t index(int slot) { return static_cast<std::size_t>(slot); }

  void poison(int slot);

  void set_rows(std::span<const Extend> batch);
  void run_layer(int layer, int rows);
  void compute_logits(std::span<const Extend> batch);
  void observe_hidden(int layer, std::span<const float> hidden, int rows) const;

  std::shared_ptr<const model::Model> model_;
  Options options_;
  Observer observer_;
  ThreadTeam team_;
  Linears linears_;
  Context context_;
  Work work_;
  std::vector<Slot> slots_;
  std::vector<LayerState> layers_;
  std::optional<MtpHead> mtp_;

  std::vector<Segment> segments_;
  Buffer hidden_;                    // [rows, hidden]: the residual stream
  Buffer normed_;                    // [rows, hidden]
  Buffer mixed_;                     // [rows, hidden]
  Buffer logits_;                    // [rows, vocab]
  std::vector<int64_t> logits_row_;  // first row of `logits_` by batch entry
};

ReferenceRuntime::ReferenceRuntime(std::shared_ptr<const model::Model> model,
                                   const Options& options)
    : model_(std::move(model)),
      options_(resolve_options(*model_, options)),
      team_(options_.threads, options_.pin_threads),
      linears_(*model_, team_, std::max(options_.max_extend_tokens + 1, options_.max_num_seqs)),
      context_{model_->config, options_, team_, linears_,
               std::max(options_.max_extend_tokens + 1, options_.max_num_seqs)},
      work_(context_, options_.max_model_len + options_.max_rewind),
      slots_(static_cast<std::size_t>(options_.max_num_seqs)),
      logits_row_(slots_.size()) {
  const model::Config& config = model_->config;
  for (const model::Layer& layer : model_->layers) {
    LayerState& state = layers_.emplace_back();
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (layer.kind == model::BlockKind::kMamba) {
        state.mamba.emplace_back(config, options_.max_rewind);
      } else if (const auto* block = std::get_if<model::AttentionBlock>(&layer.mixer)) {
        state.kv.emplace_back(options_.max_model_len, config.kv_rows(), options_.kv_cache_dtype,
                              *block);
      }
    }
  }
  if (options_.mtp) {
    mtp_.emplace(*model_, context_, options_.max_model_len + options_.max_rewind);
  }
  const int64_t rows = options_.max_extend_tokens;
  hidden_ = Buffer(rows * config.hidden_size);
  normed_ = Buffer(rows * config.hidden_size);
  mixed_ = Buffer(rows * config.hidden_size);
  logits_ = Buffer(rows * config.vocab_size);
  segments_.reserve(slots_.size());
  if (options_.poison_free_slots) {
    for (int slot = 0; slot < options_.max_num_seqs; ++slot) reset(slot);
  }
}

std::string ReferenceRuntime::description() const {
  return "reference runtime: float32, " + counted(int64_t{team_.size()}, "thread") +
         (options_.pin_threads && team_.size() > 1 ? ", pinned" : "");
}

std::vector<PlanEntry> ReferenceRuntime::plan() const {
  std::vector<PlanEntry> entries;
  for (const model::Linear* linear : model_->linears()) {
    const bool quantized = linear->activation != model::ActivationFormat::kNone;
    entries.push_back({.linear = linear->name,
                       .stored_as = std::string(model::name_of(linear->format)),
                       .computed_as = quantized ? fmt::format("f32, inputs rounded to {}",
                                                              model::name_of(linear->activation))
                                                : "f32",
                       .kernel = "reference",
                       .why = "the reference runtime computes everything in float32"});
  }
  return entries;
}

int64_t ReferenceRuntime::memory_bytes() const {
  int64_t bytes = linears_.memory_bytes() + work_.bytes() + hidden_.bytes() + normed_.bytes() +
                  mixed_.bytes() + logits_.bytes();
  for (const LayerState& layer : layers_) {
    for (const MambaState& state : layer.mamba) bytes += state.bytes();
    for (const KvCache& cache : layer.kv) bytes += cache.bytes();
  }
  return bytes + (mtp_ ? mtp_->memory_bytes() : 0);
}

void ReferenceRuntime::set_observer(Observer observer) {
  observer_ = std::move(observer);
  linears_.set_observer(&observer_);
}

void ReferenceRuntime::observe_hidden(int layer, std::span<const float> hidden, int rows) const {
  if (observer_.hidden) observer_.hidden(layer, hidden, rows);
}

void ReferenceRuntime::reset(int slot) {
  check_slot(options_, slot);
  if (options_.poison_free_slots) poison(slot);
  slots_[index(slot)] = {};
  for (LayerState& layer : layers_) {
    if (!layer.mamba.empty()) layer.mamba[index(slot)].reset();
  }
  if (mtp_) mtp_->reset(slot);
}

// Lays the batch out as rows and looks their embeddings up.
void ReferenceRuntime::set_rows(std::span<const Extend> batch) {
  const int64_t width = model_->config.hidden_size;
  segments_.clear();
  int64_t row = 0;
  for (const Extend& entry : batch) {
    const auto tokens = static_cast<int64_t>(entry.tokens.size());
    segments_.push_back({entry.slot, row, tokens, slots_[index(entry.slot)].length});
    for (const int32_t token : entry.tokens) {
      model::dequantize_row(model_->embeddings, token, hidden_.row(row++, width));
    }
  }
}

void ReferenceRuntime::run_layer(int layer, int rows) {
  const int64_t width = model_->config.hidden_size;
  const model::Layer& weights = model_->layers[index(layer)];
  LayerState& state = layers_[index(layer)];
  const std::span<float> hidden = hidden_.rows(rows, width);
  const std::span<float> normed = normed_.rows(rows, width);
  const std::span<float> mixed = mixed_.rows(rows, width);

  rms_norm_rows(team_, hidden, rows, weights.norm, model_->config.norm_eps, normed);
  if (const auto* mamba_block = std::get_if<model::MambaBlock>(&weights.mixer)) {
    mamba(context_, *mamba_block, layer, segments_, state.mamba, work_.mamba, normed, rows, mixed);
  } else if (const auto* moe_block = std::get_if<model::MoeBlock>(&weights.mixer)) {
    moe(context_, *moe_block, work_.moe, normed, rows, mixed);
  } else if (const auto* attention_block = std::get_if<model::AttentionBlock>(&weights.mixer)) {
    attention(context_, *attention_block, segments_, state.kv, work_.attention, normed, rows,
              mixed);
  } else {
    mlp(context_, std::get<model::MlpBlock>(weights.mixer), work_.mlp, normed, rows, mixed);
  }
  for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] += mixed[i];
}

void ReferenceRuntime::compute_logits(std::span<const Extend> batch) {
  const int64_t width = model_->config.hidden_size;
  // Gathers the rows that logits were asked for; `mixed_` is free by now.
  int64_t count = 0;
  for (std::size_t entry = 0; entry < batch.size(); ++entry) {
    logits_row_[entry] = count;
    const Segment& segment = segments_[entry];
    const int64_t end = segment.first_row + segment.rows;
    for (int64_t row = end - batch[entry].logits_rows; row < end; ++row) {
      const std::span<const float> from = normed_.row(row, width);
      std::copy(from.begin(), from.end(), mixed_.row(count++, width).data());
    }
  }
  if (count == 0) return;
  linears_.apply(model_->lm_head, mixed_.rows(count, width), static_cast<int>(count),
                 logits_.rows(count, model_->config.vocab_size));
}

void ReferenceRuntime::extend(std::span<const Extend> batch) {
  check_extend(*this, batch);
  const int64_t width = model_->config.hidden_size;
  if (mtp_) {
    for (const Extend& entry : batch) {
      mtp_->catch_up(context_, work_, entry.slot, entry.tokens.front());
    }
  }

  set_rows(batch);
  const auto rows = static_cast<int>(segments_.back().first_row + segments_.back().rows);
  const auto layers = static_cast<int>(model_->layers.size());
  for (int layer = 0; layer < layers; ++layer) {
    observe_hidden(layer, hidden_.rows(rows, width), rows);
    run_layer(layer, rows);
  }
  const std::span<float> final_hidden = normed_.rows(rows, width);
  rms_norm_rows(team_, hidden_.rows(rows, width), rows, model_->norm_f, model_->config.norm_eps,
                final_hidden);
  observe_hidden(layers, final_hidden, rows);
  compute_logits(batch);

  for (std::size_t entry = 0; entry < batch.size(); ++entry) {
    const Segment& segment = segments_[entry];
    Slot& slot = slots_[index(segment.slot)];
    if (mtp_) {
      mtp_->append(segment.slot, batch[entry].tokens,
                   final_hidden.subspan(static_cast<std::size_t>(segment.first_row * width),
                                        static_cast<std::size_t>(segment.rows * width)));
    }
    const bool logged = segment.rows <= options_.max_rewind;
    slot.length += segment.rows;
    slot.rewindable_to = logged ? segment.position : slot.length;
  }
}

std::span<const float> ReferenceRuntime::logits(int entry, int row) const {
  return logits_.row(logits_row_[index(entry)] + row, model_->config.vocab_size);
}

void ReferenceRuntime::rewind(int slot_index, int64_t length) {
  check_slot(options_, slot_index);
  Slot& slot = slots_[index(slot_index)];
  check_rewind(slot_index, length, slot.rewindable_to, slot.length);
  if (length == slot.length) return;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].mamba.empty()) continue;
    rewind_mamba(context_, std::get<model::MambaBlock>(model_->layers[i].mixer),
                 static_cast<int>(i), layers_[i].mamba[index(slot_index)], work_.mamba,
                 slot.rewindable_to, length - slot.rewindable_to);
  }
  if (mtp_) mtp_->rewind(slot_index, length);
  slot.length = length;
}

void ReferenceRuntime::draft(std::span<const Draft> batch) {
  check_draft(*this, batch);
  mtp_->draft(context_, work_, batch);
}

void ReferenceRuntime::poison(int slot) {
  for (LayerState& layer : layers_) {
    if (!layer.mamba.empty()) layer.mamba[index(slot)].poison();
    if (!layer.kv.empty()) layer.kv[index(slot)].poison();
  }
  if (mtp_) mtp_->poison(slot);
}

SnapshotBytes ReferenceRuntime::snapshot_bytes(int64_t parent, int64_t length) const {
  const model::Config& config = model_->config;
  int64_t caches = mtp_ ? mtp_->cache_floats(parent, length) : 0;
  int64_t state = mtp_ ? mtp_->state_floats() : 0;
  for (const LayerState& layer : layers_) {
    if (!layer.kv.empty()) caches += 2 * (length - parent) * config.kv_rows();
    if (layer.mamba.empty()) continue;
    const MambaState::Values& values = layer.mamba.front().now;
    state += static_cast<int64_t>(values.window.size() + values.ssm.size());
  }
  constexpr int64_t kFloat = sizeof(float);
  return {caches * kFloat, state * kFloat};
}

Snapshot ReferenceRuntime::save(int slot, int64_t parent) {
  check_save(*this, slot, parent);
  const int64_t length = slots_[index(slot)].length;
  const SnapshotBytes bytes = snapshot_bytes(parent, length);
  const auto caches = std::make_shared<std::byte[]>(static_cast<std::size_t>(bytes.caches));
  const auto state = std::make_shared<std::byte[]>(static_cast<std::size_t>(bytes.state));
  auto* cache = reinterpret_cast<float*>(caches.get());
  auto* values = reinterpret_cast<float*>(state.get());
  for (const LayerState& layer : layers_) {
    if (!layer.kv.empty()) cache = layer.kv[index(slot)].copy_to(cache, parent, length);
    if (layer.mamba.empty()) continue;
    const MambaState::Values& now = layer.mamba[index(slot)].now;
    values = std::copy(now.window.begin(), now.window.end(), values);
    values = std::copy(now.ssm.begin(), now.ssm.end(), values);
  }
  if (mtp_) {
    mtp_->save_cache(context_, work_, slot, parent, cache);
    mtp_->save_state(slot, values);
  }
  return {parent, length, caches, state};
}

void ReferenceRuntime::restore(int slot, std::span<const Snapshot> chain) {
  check_restore(*this, slot, chain);
  reset(slot);
  for (const Snapshot& snapshot : chain) {
    const auto* cache = reinterpret_cast<const float*>(snapshot.caches.get());
    for (LayerState& layer : layers_) {
      if (layer.kv.empty()) continue;
      cache = layer.kv[index(slot)].copy_from(cache, snapshot.parent, snapshot.length);
    }
    if (mtp_) mtp_->restore_cache(slot, snapshot.parent, snapshot.length, cache);
  }
  const Snapshot& last = chain.back();
  const auto* values = reinterpret_cast<const float*>(last.state.get());
  for (LayerState& layer : layers_) {
    if (layer.mamba.empty()) continue;
    MambaState::Values& now = layer.mamba[index(slot)].now;
    std::copy_n(values, now.window.size(), now.window.begin());
    values += now.window.size();
    std::copy_n(values, now.ssm.size(), now.ssm.begin());
    values += now.ssm.size();
  }
  if (mtp_) mtp_->restore_state(slot, last.length, values);
  slots_[index(slot)] = {.length = last.length, .rewindable_to = last.length};
}

}  // namespace
}  // namespace reference

std::unique_ptr<Runtime> make_reference_runtime(std::shared_ptr<const model::Model> model,
                                                const Options& options) {
  return std::make_unique<reference::ReferenceRuntime>(std::move(model), options);
}

}  // namespace levin::runtime
