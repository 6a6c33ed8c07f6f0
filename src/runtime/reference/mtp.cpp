#include "runtime/reference/mtp.h"

#include <algorithm>

#include "runtime/reference/norm.h"
#include "runtime/validate.h"

namespace levin::runtime::reference {

MtpHead::MtpHead(const model::Model& model, const Context& context, int64_t max_context)
    : model_(model),
      mtp_(*model.mtp),
      hidden_size_(model.config.hidden_size),
      vocab_size_(model.config.vocab_size),
      max_drafts_(context.options.max_rewind),
      inputs_(context.max_rows * 2 * hidden_size_),
      x_(context.max_rows * hidden_size_),
      normed_(context.max_rows * hidden_size_),
      mixed_(context.max_rows * hidden_size_) {
  check_mtp_schedule(mtp_);
  const auto slots = static_cast<std::size_t>(context.options.max_num_seqs);
  const int64_t kept = context.options.max_extend_tokens + 1;
  for (std::size_t slot = 0; slot < slots; ++slot) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.tokens.resize(static_cast<std::size_t>(kept));
    sequence.hidden = Buffer(kept * hidden_size_);
    caches_.emplace_back(max_context, model.config.kv_rows(), context.options.kv_cache_dtype,
                         std::get<model::AttentionBlock>(mtp_.layers.front().mixer));
  }
  const auto rows = static_cast<int64_t>(slots);
  final_ = Buffer(rows * hidden_size_);
  logits_ = Buffer(rows * vocab_size_);
  draft_logits_ = Buffer(rows * max_drafts_ * vocab_size_);
  drafts_.resize(slots * static_cast<std::size_t>(max_drafts_));
  proposed_.resize(slots);
  vocab_.resize(slots);
  segments_.reserve(slots);
  active_.reserve(slots);
  rows_.resize(slots);
}

void MtpHead::reset(int slot) {
  Sequence& sequence = sequences_[static_cast<std::size_t>(slot)];
  sequence.length = 0;
  sequence.entries = 0;
  sequence.first = 0;
}

void MtpHead::set_input(int64_t row, std::span<const float> hidden, int32_t next_token) {
  const auto width = static_cast<std::size_t>(hidden_size_);
  const std::span<float> input = inputs_.row(row, 2 * hidden_size_);
  model::dequantize_row(model_.embeddings, next_token, input.first(width));
  rms_norm(input.first(width), mtp_.enorm, model_.config.norm_eps, input.first(width));
  rms_norm(hidden, mtp_.hnorm, model_.config.norm_eps, input.subspan(width));
}

void MtpHead::fuse(Context& context, int rows) {
  context.linears.apply(mtp_.eh_proj, inputs_.rows(rows, 2 * hidden_size_), rows,
                        x_.rows(rows, hidden_size_));
}

void MtpHead::make_entries(Context& context, Work& work, int slot, int64_t end,
                           int32_t next_token) {
  Sequence& sequence = sequences_[static_cast<std::size_t>(slot)];
  const int64_t begin = sequence.entries;
  const auto rows = static_cast<int>(end - begin);
  if (rows <= 0) return;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t kept = begin + row - sequence.first;
    const bool last = begin + row + 1 == sequence.length;
    set_input(row, sequence.hidden.row(kept, hidden_size_),
              last ? next_token : sequence.tokens[static_cast<std::size_t>(kept + 1)]);
  }
  fuse(context, rows);
  const model::Layer& layer = mtp_.layers.front();
  const std::span<float> normed = normed_.rows(rows, hidden_size_);
  rms_norm_rows(context.team, x_.rows(rows, hidden_size_), rows, layer.norm, model_.config.norm_eps,
                normed);
  const Segment segment = {slot, 0, rows, begin};
  store_keys_and_values(context, std::get<model::AttentionBlock>(layer.mixer), {&segment, 1},
                        caches_, work.attention, normed, rows);
  sequence.entries = end;
}

void MtpHead::catch_up(Context& context, Work& work, int slot, int32_t next_token) {
  make_entries(context, work, slot, sequences_[static_cast<std::size_t>(slot)].length, next_token);
}

void MtpHead::append(int slot, std::span<const int32_t> tokens, std::span<const float> hidden) {
  Sequence& sequence = sequences_[static_cast<std::size_t>(slot)];
  // The row before the new ones stays: a rewind may make it the last one again.
  int64_t kept = 0;
  if (sequence.length > 0) {
    const int64_t last = sequence.length - 1 - sequence.first;
    const std::span<float> row = sequence.hidden.row(last, hidden_size_);
    std::copy(row.begin(), row.end(), sequence.hidden.data());
    sequence.tokens[0] = sequence.tokens[static_cast<std::size_t>(last)];
    kept = 1;
  }
  sequence.first = sequence.length - kept;
  std::copy(tokens.begin(), tokens.end(), sequence.tokens.begin() + kept);
  std::copy(hidden.begin(), hidden.end(), sequence.hidden.row(kept, hidden_size_).data());
  sequence.length += static_cast<int64_t>(tokens.size());
}

void MtpHead::rewind(int slot, int64_t length) {
  Sequence& sequence = sequences_[static_cast<std::size_t>(slot)];
  sequence.length = length;
  sequence.entries = std::clamp<int64_t>(length - 1, 0, sequence.entries);
}

void MtpHead::forward(Context& context, Work& work, std::span<const Segment> segments, int rows) {
  const std::span<float> x = x_.rows(rows, hidden_size_);
  const std::span<float> normed = normed_.rows(rows, hidden_size_);
  const std::span<float> mixed = mixed_.rows(rows, hidden_size_);
  for (const model::Layer& layer : mtp_.layers) {
    rms_norm_rows(context.team, x, rows, layer.norm, model_.config.norm_eps, normed);
    if (const auto* block = std::get_if<model::AttentionBlock>(&layer.mixer)) {
      attention(context, *block, segments, caches_, work.attention, normed, rows, mixed);
    } else if (const auto* experts = std::get_if<model::MoeBlock>(&layer.mixer)) {
      moe(context, *experts, work.moe, normed, rows, mixed);
    } else {
      mlp(context, std::get<model::MlpBlock>(layer.mixer), work.mlp, normed, rows, mixed);
    }
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += mixed[i];
  }
  rms_norm_rows(context.team, x, rows, mtp_.final_layernorm, model_.config.norm_eps,
                final_.rows(rows, hidden_size_));
}

void MtpHead::draft(Context& context, Work& work, std::span<const Draft> batch) {
  int most = 0;
  for (std::size_t entry = 0; entry < batch.size(); ++entry) {
    const Sequence& sequence = sequences_[static_cast<std::size_t>(batch[entry].slot)];
    make_entries(context, work, batch[entry].slot, sequence.length - 1, 0);
    proposed_[entry] = batch[entry].k;
    vocab_[entry] = batch[entry].vocab > 0 ? batch[entry].vocab : vocab_size_;
    most = std::max(most, batch[entry].k);
  }
  for (int step = 0; step < most; ++step) {
    segments_.clear();
    active_.clear();
    for (std::size_t entry = 0; entry < batch.size(); ++entry) {
      if (batch[entry].k <= step) continue;
      const Sequence& sequence = sequences_[static_cast<std::size_t>(batch[entry].slot)];
      const auto row = static_cast<int64_t>(segments_.size());
      const int64_t last = sequence.length - 1;
      if (step == 0) {
        set_input(row, sequence.hidden.row(last - sequence.first, hidden_size_),
                  batch[entry].next_token);
      } else {
        set_input(row, final_.row(rows_[entry], hidden_size_),
                  drafts(static_cast<int>(entry))[static_cast<std::size_t>(step - 1)]);
      }
      rows_[entry] = row;
      segments_.push_back({batch[entry].slot, row, 1, last + step});
      active_.push_back(static_cast<int>(entry));
    }
    const auto rows = static_cast<int>(segments_.size());
    fuse(context, rows);
    forward(context, work, segments_, rows);
    context.linears.apply(model_.lm_head, final_.rows(rows, hidden_size_), rows,
                          logits_.rows(rows, vocab_size_));
    for (int row = 0; row < rows; ++row) {
      const auto entry = static_cast<std::size_t>(active_[static_cast<std::size_t>(row)]);
      const int64_t place = static_cast<int64_t>(entry) * max_drafts_ + step;
      const std::span<const float> logits =
          logits_.row(row, vocab_size_).first(static_cast<std::size_t>(vocab_[entry]));
      std::copy(logits.begin(), logits.end(), draft_logits_.row(place, vocab_size_).data());
      drafts_[static_cast<std::size_t>(place)] = argmax(logits);
    }
  }
}

std::span<const int32_t> MtpHead::drafts(int entry) const {
  const auto begin = static_cast<std::size_t>(entry) * static_cast<std::size_t>(max_drafts_);
  return std::span(drafts_).subspan(
      begin, static_cast<std::size_t>(proposed_[static_cast<std::size_t>(entry)]));
}

std::span<const float> MtpHead::draft_logits(int entry, int step) const {
  return std::span<const float>(draft_logits_.row(int64_t{entry} * max_drafts_ + step, vocab_size_))
      .first(static_cast<std::size_t>(vocab_[static_cast<std::size_t>(entry)]));
}

int64_t MtpHead::memory_bytes() const {
  int64_t bytes = inputs_.bytes() + x_.bytes() + normed_.bytes() + mixed_.bytes() + final_.bytes() +
                  logits_.bytes() + draft_logits_.bytes();
  for (const Sequence& sequence : sequences_) bytes += sequence.hidden.bytes();
  for (const KvCache& cache : caches_) bytes += cache.bytes();
  return bytes;
}

}  // namespace levin::runtime::reference
