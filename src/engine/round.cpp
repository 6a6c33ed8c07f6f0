#include "engine/round.h"

#include <algorithm>

namespace levin::engine {

Rounds::Rounds(runtime::Runtime& runtime)
    : runtime_(runtime),
      sampler_(runtime.model().config.vocab_size),
      budget_(runtime.options().max_extend_tokens),
      pipeline_(runtime) {
  const auto slots = static_cast<std::size_t>(runtime.options().max_num_seqs);
  draft_batch_.reserve(slots);
  batch_.reserve(slots);
  proposals_.resize(slots);
  feeds_.resize(slots);
  on_device_.reserve(slots);
  on_host_.reserve(slots);
  for (auto& proposal : proposals_) {
    proposal.reserve(static_cast<std::size_t>(runtime.options().max_rewind));
  }
  for (Feed& feed : feeds_) feed.tokens.reserve(static_cast<std::size_t>(budget_));
  report_.drafts_tried.resize(static_cast<std::size_t>(runtime.options().max_rewind));
  report_.drafts_right.resize(report_.drafts_tried.size());
  report_.speculation.num_accepted_tokens_per_pos.resize(report_.drafts_tried.size());
}

void Rounds::run(std::span<Sequence* const> sequences, const RoundLimits& limits) {
  clear_report();
  on_device_.clear();
  on_host_.clear();
  for (Sequence* sequence : sequences) {
    if (sequence->finished()) continue;
    if (!sequence->prefilled() && limits.prompt_tokens == 0) continue;
    const bool device = sequence->prefilled() && pipeline_.takes(*sequence);
    (device ? on_device_ : on_host_).push_back(sequence);
  }
  const bool host = !on_host_.empty();
  if (host) {
    pipeline_.settle(report_);
    clear_costs();
    run_on_host(on_host_, limits);
  }
  // After the host's part, whose logits the device's rounds would replace.
  if (!on_device_.empty()) pipeline_.run(on_device_, limits.adaptive_drafts, !host, report_);
}

void Rounds::settle() {
  clear_report();
  pipeline_.settle(report_);
}

void Rounds::run_on_host(std::span<Sequence* const> sequences, const RoundLimits& limits) {
  const auto start = Sequence::Clock::now();
  draft(sequences, limits.adaptive_drafts);
  const auto drafted = Sequence::Clock::now();
  for (Sequence* sequence : sequences) {
    if (!sequence->finished() && sequence->prefilled()) add_block(*sequence);
  }
  int64_t prompt_budget = limits.prompt_tokens;
  bool some_advance = false;
  for (Sequence* sequence : sequences) {
    if (sequence->finished() || sequence->prefilled()) continue;
    int64_t size = add_prompt_chunk(*sequence, std::min(budget_, prompt_budget));
    if (size == 0 && !some_advance) {  // so that some prompt always does
      flush();
      size = add_prompt_chunk(*sequence, std::min(budget_, prompt_budget));
      if (size == 0) size = add_prompt_chunk(*sequence, budget_);
    }
    some_advance = true;
    prompt_budget -= size;
  }
  flush();
  report_.draft_seconds = std::chrono::duration<double>(drafted - start).count();
  report_.extend_seconds = std::chrono::duration<double>(Sequence::Clock::now() - drafted).count();
}

// What the policy reckons with: of rounds that were launched now, not of those that were settled.
void Rounds::clear_costs() {
  report_.decoding = report_.decode_rows = report_.drafting = report_.draft_steps = 0;
  report_.prompt_rows = 0;
  report_.draft_seconds = report_.extend_seconds = 0;
}

void Rounds::clear_report() {
  clear_costs();
  SpeculationStats& stats = report_.speculation;
  stats.num_drafts = stats.num_draft_tokens = stats.num_accepted_tokens = 0;
  std::fill(stats.num_accepted_tokens_per_pos.begin(), stats.num_accepted_tokens_per_pos.end(), 0);
  std::fill(report_.drafts_tried.begin(), report_.drafts_tried.end(), 0);
  std::fill(report_.drafts_right.begin(), report_.drafts_right.end(), 0);
}

// proposals_ of every sequence that wants drafts, from outside or from the draft head.
void Rounds::draft(std::span<Sequence* const> sequences, int adaptive_drafts) {
  draft_batch_.clear();
  const int widest = runtime_.options().max_extend_tokens - 1;
  for (Sequence* sequence : sequences) {
    auto& proposal = proposals_[static_cast<std::size_t>(sequence->slot())];
    proposal.clear();
    if (sequence->finished() || !sequence->prefilled()) continue;
    const int wanted = std::min(sequence->wanted_drafts(adaptive_drafts), widest);
    if (wanted == 0) continue;
    if (!sequence->request().given_drafts.empty()) {
      const std::span<const int32_t> given = sequence->given_drafts(wanted);
      proposal.assign(given.begin(), given.end());
    } else {
      draft_batch_.push_back({.slot = sequence->slot(),
                              .next_token = sequence->tokens().back(),
                              .k = wanted,
                              .vocab = sequence->request().speculation.draft_vocab_size});
    }
  }
  if (draft_batch_.empty()) return;
  runtime_.draft(draft_batch_);
  report_.drafting = static_cast<int>(draft_batch_.size());
  for (std::size_t entry = 0; entry < draft_batch_.size(); ++entry) {
    const std::span<const int32_t> drafts = runtime_.drafts(static_cast<int>(entry));
    report_.draft_steps = std::max(report_.draft_steps, draft_batch_[entry].k);
    proposals_[static_cast<std::size_t>(draft_batch_[entry].slot)].assign(drafts.begin(),
                                                                          drafts.end());
  }
}

Rounds::Feed& Rounds::next_feed(Sequence& sequence) {
  Feed& feed = feeds_[feed_count_++];
  feed.sequence = &sequence;
  feed.drafts = 0;
  feed.ends_prompt = false;
  return feed;
}

void Rounds::add_block(Sequence& sequence) {
  const auto& proposal = proposals_[static_cast<std::size_t>(sequence.slot())];
  const auto rows = static_cast<int64_t>(1 + proposal.size());
  if (rows > budget_) flush();
  budget_ -= rows;
  ++report_.decoding;
  report_.decode_rows += static_cast<int>(rows);
  Feed& feed = next_feed(sequence);
  feed.tokens.assign(1, sequence.tokens().back());
  feed.tokens.insert(feed.tokens.end(), proposal.begin(), proposal.end());
  feed.drafts = static_cast<int>(proposal.size());
}

int64_t Rounds::add_prompt_chunk(Sequence& sequence, int64_t most) {
  const std::span<const int32_t> chunk = sequence.prefill_chunk(std::max<int64_t>(most, 0));
  if (chunk.empty()) return 0;  // its turn comes in a later round
  sequence.started(Sequence::Clock::now());
  const auto size = static_cast<int64_t>(chunk.size());
  budget_ -= size;
  report_.prompt_rows += size;
  Feed& feed = next_feed(sequence);
  feed.tokens.assign(chunk.begin(), chunk.end());
  feed.ends_prompt = sequence.chooses_after(chunk.size());
  return size;
}

void Rounds::flush() {
  if (feed_count_ == 0) return;
  batch_.clear();
  for (std::size_t i = 0; i < feed_count_; ++i) {
    const Feed& feed = feeds_[i];
    const bool block = feed.sequence->prefilled();
    batch_.push_back({.slot = feed.sequence->slot(),
                      .tokens = feed.tokens,
                      .logits_rows = block              ? 1 + feed.drafts
                                     : feed.ends_prompt ? 1
                                                        : 0});
  }
  runtime_.extend(batch_);
  for (std::size_t i = 0; i < feed_count_; ++i) {
    try {
      accept(feeds_[i], static_cast<int>(i));
    } catch (...) {
      feeds_[i].sequence->fail(std::current_exception());
    }
  }
  feed_count_ = 0;
  budget_ = runtime_.options().max_extend_tokens;
}

void Rounds::accept(const Feed& feed, int entry) {
  Sequence& sequence = *feed.sequence;
  const bool block = sequence.prefilled();
  if (!block) sequence.consume(static_cast<int64_t>(feed.tokens.size()));
  if (!block && !feed.ends_prompt) return;

  int rows = 0;
  int accepted = 0;
  bool go_on = true;
  while (go_on && !sequence.finished()) {
    const int32_t chosen = sequence.choose(sampler_, runtime_.logits(entry, rows));
    const bool drafted = rows < feed.drafts;
    const int32_t draft = drafted ? feed.tokens[static_cast<std::size_t>(rows) + 1] : chosen;
    go_on = drafted && sequence.accepts(rows, draft, chosen);
    sequence.append(go_on ? draft : chosen);
    ++rows;
    if (go_on) ++accepted;
  }
  sequence.produced(Sequence::Clock::now());
  if (!block) return;

  // The last token and the accepted drafts are consumed, the rest of the block never was.
  sequence.consume(rows);
  if (rows <= feed.drafts) {
    runtime_.rewind(sequence.slot(), static_cast<int64_t>(sequence.tokens().size()) - 1);
  }
  if (feed.drafts > 0) count_drafts(sequence, feed.drafts, accepted, report_);
}

}  // namespace levin::engine
