#include "runtime/cpu/draft.h"

#include <algorithm>
#include <limits>

#include "runtime/cpu/blocks.h"
#include "runtime/cpu/layout.h"
#include "runtime/validate.h"

namespace levin::runtime::cpu {
namespace {

KvCache& draft_cache(State& state, int slot, int /*layer*/) {
  return state[slot].draft_kv;
}

}  // namespace

DraftRows::DraftRows(int64_t max_rows, int64_t capacity, int64_t max_segments)
    : max_rows_(static_cast<std::size_t>(max_rows)) {
  const auto rows = static_cast<std::size_t>(capacity);
  const std::size_t chunks = rows / max_rows_ + 1;
  rows_.reserve(rows);
  whole_.reserve(static_cast<std::size_t>(max_segments));
  segments_.reserve(static_cast<std::size_t>(max_segments) + chunks);
  chunk_ends_.reserve(chunks);
}

void DraftRows::clear() {
  rows_.clear();
  whole_.clear();
  segments_.clear();
  chunk_ends_.clear();
}

void DraftRows::add(int slot, int64_t position, const Row& row) {
  const bool continues = !whole_.empty() && whole_.back().slot == slot &&
                         whole_.back().position + whole_.back().rows == position;
  if (continues) {
    ++whole_.back().rows;
  } else {
    whole_.push_back({slot, static_cast<int64_t>(rows_.size()), 1, position});
  }
  rows_.push_back(row);
}

void DraftRows::finish() {
  if (rows_.empty()) return;
  // Counted from the end, so that the last chunk is as full as it can be.
  std::size_t end = (rows_.size() - 1) % max_rows_ + 1;
  std::size_t begin = 0;
  std::size_t next = 0;
  while (begin < rows_.size()) {
    for (; next < whole_.size() && whole_[next].first_row < static_cast<int64_t>(end); ++next) {
      const Segment& whole = whole_[next];
      const int64_t first = std::max(whole.first_row, static_cast<int64_t>(begin));
      const int64_t last = std::min(whole.first_row + whole.rows, static_cast<int64_t>(end));
      segments_.push_back({whole.slot, first - static_cast<int64_t>(begin), last - first,
                           whole.position + first - whole.first_row});
      if (whole.first_row + whole.rows > last) break;  // goes on in the next chunk
    }
    chunk_ends_.push_back({end, segments_.size()});
    begin = end;
    end += max_rows_;
  }
}

DraftRows::Chunk DraftRows::chunk(std::size_t index) const {
  const End begin = index == 0 ? End{0, 0} : chunk_ends_[index - 1];
  const End end = chunk_ends_[index];
  return {std::span(rows_).subspan(begin.row, end.row - begin.row),
          std::span(segments_).subspan(begin.segment, end.segment - begin.segment)};
}

DraftHead::DraftHead(const model::Model& model, const Options& options, const MtpWeights& weights,
                     const Matrix& lm_head, State& state, int64_t max_rows)
    : model_(model),
      weights_(weights),
      lm_head_(lm_head),
      state_(state),
      max_drafts_(options.max_rewind),
      before_(max_rows, options.max_num_seqs * log_rows(), options.max_num_seqs),
      after_(max_rows, options.max_num_seqs * log_rows() + max_rows, options.max_num_seqs),
      draft_(max_rows, options.max_num_seqs * (log_rows() + 1), 2 * options.max_num_seqs) {
  check_mtp_schedule(*model.mtp);
  const auto slots = static_cast<std::size_t>(options.max_num_seqs);
  active_.reserve(slots);
  logits_rows_.reserve(slots);
  proposed_.resize(slots);
  vocab_.resize(slots, model.config.vocab_size);
  drafts_.resize(slots * static_cast<std::size_t>(max_drafts_));
  best_.resize(slots * static_cast<std::size_t>(options.threads));
  Layout layout;
  layout.rows(logits_, int64_t{options.max_num_seqs} * max_drafts_, model.config.vocab_size);
  arena_ = layout.allocate();
}

// Rows for the positions from the slot's first unmade entry to `end`, from the log. Token `end` is
// `next_token` when the log does not have it.
void DraftHead::add_logged(DraftRows& rows, int slot_index, int64_t end, int32_t next_token) {
  const Slot& slot = state_[slot_index];
  const DraftLog& log = slot.draft;
  for (int64_t p = log.entries; p < end; ++p) {
    const int64_t row = p - log.first;
    const int32_t token = p + 1 < slot.length ? log.tokens[row + 1] : next_token;
    rows.add(slot_index, p, {log.hidden[row], token});
  }
}

void DraftHead::plan_extend(std::span<const Extend> batch, std::span<const Segment> segments,
                            const Rows& final_rows) {
  before_.clear();
  after_.clear();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::span<const int32_t> tokens = batch[i].tokens;
    const Slot& slot = state_[batch[i].slot];
    const Segment& segment = segments[i];
    if (segment.rows <= max_drafts_) {
      // These rows may be forgotten again: they only go to the log, if that has room.
      if (slot.length - slot.draft.first + segment.rows > log_rows()) {
        add_logged(before_, batch[i].slot, slot.length, tokens.front());
      }
      continue;
    }
    add_logged(after_, batch[i].slot, slot.length, tokens.front());
    for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
      const auto row = static_cast<int64_t>(t);
      after_.add(batch[i].slot, segment.position + row,
                 {final_rows[segment.first_row + row], tokens[t + 1]});
    }
  }
  before_.finish();
  after_.finish();
}

void DraftHead::finish_extend(std::span<const Extend> batch, std::span<const Segment> segments,
                              const Rows& final_rows) {
  const int64_t width = model_.config.hidden_size;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Segment& segment = segments[i];
    const Slot& slot = state_[segment.slot];
    DraftLog& log = state_[segment.slot].draft;
    int64_t from = 0;
    if (segment.rows > max_drafts_) {
      // All entries but the last are made and final: only the last row is still needed.
      from = segment.rows - 1;
      log.first = slot.length + from;
      log.entries = log.first;
    } else if (slot.length - log.first + segment.rows > log_rows()) {
      // So are those of the log, but a rewind may make its last row the last one again.
      const int64_t last = slot.length - 1;
      std::copy_n(log.hidden[last - log.first], width, log.hidden[0]);
      log.tokens[0] = log.tokens[last - log.first];
      log.first = last;
      log.entries = slot.length;
    }
    for (int64_t row = from; row < segment.rows; ++row) {
      const int64_t place = slot.length + row - log.first;
      std::copy_n(final_rows[segment.first_row + row], width, log.hidden[place]);
      log.tokens[place] = batch[i].tokens[static_cast<std::size_t>(row)];
    }
  }
}

void DraftHead::rewind(int slot, int64_t length) {
  DraftLog& log = state_[slot].draft;
  log.entries = std::clamp<int64_t>(length - 1, 0, log.entries);
}

void DraftHead::fuse(Pass& pass, std::span<const DraftRows::Row> rows) {
  const auto width = static_cast<std::size_t>(model_.config.hidden_size);
  const auto eps = static_cast<float>(model_.config.norm_eps);
  const auto count = static_cast<int64_t>(rows.size());
  const model::Mtp& mtp = *weights_.mtp;
  const Rows inputs = pass.small() ? pass.own().wide : pass.work().fused;
  const Range range = pass.rows_to_stage(count);
  pass.enter_layer(-1, true);
  pass.phase(Phase::kDraftIn);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const DraftRows::Row& row = rows[static_cast<std::size_t>(i)];
    float* embedding = inputs[i];
    model::dequantize_row(model_.embeddings, row.token, {embedding, width});
    pass.kernels().rms_norm(embedding, mtp.enorm.data(), model_.config.hidden_size, eps, embedding);
    pass.kernels().rms_norm(row.hidden, mtp.hnorm.data(), model_.config.hidden_size, eps,
                            embedding + width);
  }
  const PackedInput input = pass.stage(0, weights_.eh_proj, inputs, count);
  pass.staged();
  pass.watch_input(weights_.eh_proj, inputs, count);
  pass.multiply(weights_.eh_proj, input, store_to(pass.work().hidden));
  pass.barrier();
}

void DraftHead::make_entries(Pass& pass, const DraftRows::Chunk& chunk) {
  const LayerWeights& layer = weights_.layers.front();
  const auto count = static_cast<int64_t>(chunk.rows.size());
  fuse(pass, chunk.rows);
  pass.enter_layer(0, true);
  run_attention(pass, std::get<AttentionWeights>(layer.mixer), layer.norm, 0, draft_cache, state_,
                chunk.segments, pass.work().hidden, count, count);
}

void DraftHead::run_entries(const Shared& shared, int thread, const DraftRows& rows) {
  for (std::size_t i = 0; i < rows.chunks(); ++i) {
    const DraftRows::Chunk chunk = rows.chunk(i);
    Pass pass(shared, thread, static_cast<int64_t>(chunk.rows.size()));
    make_entries(pass, chunk);
  }
}

// The rows from `first_output` on make proposals; the others only cache entries.
void DraftHead::run_outputs(Pass& pass, const DraftRows::Chunk& chunk, int64_t first_output) {
  const auto count = static_cast<int64_t>(chunk.rows.size());
  const int64_t outputs = count - first_output;
  Workspace& work = pass.work();
  fuse(pass, chunk.rows);
  const Rows hidden = work.hidden.from(first_output);
  int index = 0;
  for (const LayerWeights& layer : weights_.layers) {
    pass.enter_layer(index++, true);
    if (const auto* attention = std::get_if<AttentionWeights>(&layer.mixer)) {
      run_attention(pass, *attention, layer.norm, 0, draft_cache, state_, chunk.segments,
                    work.hidden, count, first_output);
    } else if (const auto* moe = std::get_if<MoeWeights>(&layer.mixer)) {
      run_moe(pass, *moe, layer.norm, hidden, outputs);
    } else {
      run_mlp(pass, std::get<FeedForward>(layer.mixer), layer.norm, hidden, outputs);
    }
  }
  pass.enter_layer(-1, true);
  pass.phase(Phase::kHead);
  const Rows& normed = pass.small() ? pass.own().hidden : work.final;
  pass.normalize(hidden, outputs, weights_.mtp->final_layernorm.data(), normed);
  if (pass.small() && pass.thread() == 0) {
    std::copy_n(normed.data, outputs * normed.stride, work.final.data);
  }
  const PackedInput input = pass.stage(0, head_, normed, outputs);
  pass.staged();
  pass.watch_input(head_, normed, outputs);
  LinearOutput output = store_to(logits_);
  output.rows = logits_rows_.data();
  pass.multiply(head_, input, output);
  choose(pass, outputs);
  pass.barrier();
}

// Each thread finds the best of the logits that it computed itself.
void DraftHead::choose(Pass& pass, int64_t outputs) {
  const Range panels = pass.panels_of(head_);
  const int64_t begin = panels.begin * kLanes;
  for (int64_t i = 0; i < outputs; ++i) {
    const auto entry = static_cast<std::size_t>(active_[static_cast<std::size_t>(i)]);
    const int64_t end = std::min(panels.end * kLanes, vocab_[entry]);
    const float* logits = logits_[logits_rows_[static_cast<std::size_t>(i)]];
    Best& best = best_[static_cast<std::size_t>(i * pass.threads() + pass.thread())];
    best = {-std::numeric_limits<float>::infinity(), 0};
    if (begin >= end) continue;
    best.index = begin + pass.kernels().argmax(logits + begin, end - begin);
    best.value = logits[best.index];
  }
}

void DraftHead::plan_draft(std::span<const Draft> batch) {
  batch_ = batch;
  steps_ = 0;
  draft_.clear();
  active_.clear();
  logits_rows_.clear();
  for (const Draft& entry : batch) {
    add_logged(draft_, entry.slot, state_[entry.slot].length - 1, 0);
    state_[entry.slot].draft.entries = state_[entry.slot].length - 1;
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Slot& slot = state_[batch[i].slot];
    const int64_t last = slot.length - 1;
    draft_.add(batch[i].slot, last,
               {slot.draft.hidden[last - slot.draft.first], batch[i].next_token});
    active_.push_back(static_cast<int>(i));
    logits_rows_.push_back(static_cast<int32_t>(static_cast<int>(i) * max_drafts_));
    proposed_[i] = batch[i].k;
    vocab_[i] = batch[i].vocab > 0 ? batch[i].vocab : lm_head_.out;
    steps_ = std::max(steps_, batch[i].k);
  }
  draft_.finish();
  const auto used = vocab_.begin() + static_cast<std::ptrdiff_t>(batch.size());
  head_ = lm_head_;
  head_.panels.panels = (*std::max_element(vocab_.begin(), used) + kLanes - 1) / kLanes;
}

// Takes the proposals of `step` from the threads' results and lays out the rows of the next one.
void DraftHead::next_step(int step, const Rows& final_rows) {
  const std::size_t threads = best_.size() / proposed_.size();
  draft_.clear();
  std::size_t kept = 0;
  for (std::size_t row = 0; row < active_.size(); ++row) {
    const Best* best = &best_[row * threads];
    const Best* largest = best;
    for (std::size_t thread = 1; thread < threads; ++thread) {
      if (best[thread].value > largest->value) largest = &best[thread];
    }
    const int entry = active_[row];
    const Draft& draft = batch_[static_cast<std::size_t>(entry)];
    const auto token = static_cast<int32_t>(largest->index);
    drafts_[static_cast<std::size_t>(logits_rows_[row])] = token;
    if (draft.k <= step + 1) continue;
    draft_.add(draft.slot, state_[draft.slot].length + step,
               {final_rows[static_cast<int64_t>(row)], token});
    active_[kept] = entry;
    logits_rows_[kept] = static_cast<int32_t>(entry * max_drafts_ + step + 1);
    ++kept;
  }
  active_.resize(kept);
  logits_rows_.resize(kept);
  draft_.finish();
}

void DraftHead::run_draft(const Shared& shared, int thread) {
  for (std::size_t i = 0; i + 1 < draft_.chunks(); ++i) {
    const DraftRows::Chunk chunk = draft_.chunk(i);
    Pass pass(shared, thread, static_cast<int64_t>(chunk.rows.size()));
    make_entries(pass, chunk);
  }
  for (int step = 0; step < steps_; ++step) {
    const DraftRows::Chunk chunk = draft_.chunk(draft_.chunks() - 1);
    const auto count = static_cast<int64_t>(chunk.rows.size());
    Pass pass(shared, thread, count);
    run_outputs(pass, chunk, count - static_cast<int64_t>(active_.size()));
    if (thread == 0) next_step(step, shared.work.final);
    pass.barrier();
  }
}

std::span<const int32_t> DraftHead::drafts(int entry) const {
  return std::span(drafts_).subspan(
      static_cast<std::size_t>(entry) * max_drafts_,
      static_cast<std::size_t>(proposed_[static_cast<std::size_t>(entry)]));
}

std::span<const float> DraftHead::logits(int entry, int step) const {
  return {logits_[int64_t{entry} * max_drafts_ + step],
          static_cast<std::size_t>(vocab_[static_cast<std::size_t>(entry)])};
}

}  // namespace levin::runtime::cpu
