#include "engine/round_pipeline.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>

#include "core/error.h"
#include "engine/round.h"

namespace levin::engine {
namespace {

// In the log once for each obstacle, however many sequences and engines meet it.
void say_once(Sequence::DeviceObstacle obstacle) {
  static std::atomic<unsigned> said = 0;
  const unsigned bit = 1U << static_cast<unsigned>(obstacle);
  if ((said.fetch_or(bit) & bit) != 0) return;
  spdlog::info("requests with {} are run round by round by the host: the device cannot do that",
               name_of(obstacle));
}

[[noreturn]] void no_numbers() {
  throw Error({.what = "the model's logits are not numbers",
               .where = "sampling",
               .expected = "a finite largest logit",
               .found = "none that is finite",
               .hint = "the checkpoint or its quantization is broken; compare with "
                       "levin logits --runtime reference",
               .exit_code = ExitCode::kBadInput});
}

}  // namespace

RoundPipeline::RoundPipeline(runtime::Runtime& runtime)
    : device_(runtime.rounds()),
      rounds_of_(static_cast<std::size_t>(runtime.options().max_num_seqs)) {}

RoundPipeline::~RoundPipeline() {
  try {
    while (in_flight_ > 0) {
      device_->wait();
      --in_flight_;
    }
  } catch (const std::exception& error) {
    spdlog::error("rounds in flight did not end: {}", error.what());
  }
}

bool RoundPipeline::takes(const Sequence& sequence) const {
  if (device_ == nullptr || !sequence.request().speculation.device_rounds) return false;
  if (sequence.consumed() == 0) return false;  // nothing that a device could go on from
  Sequence::DeviceObstacle obstacle = sequence.device_obstacle();
  if (obstacle == Sequence::DeviceObstacle::kNone && !device_->samples() &&
      !sequence.request().sampling.greedy()) {
    obstacle = Sequence::DeviceObstacle::kVocabulary;
  }
  if (obstacle == Sequence::DeviceObstacle::kNone) return true;
  // Whoever brings drafts of their own asks for it.
  if (obstacle != Sequence::DeviceObstacle::kGivenDrafts) say_once(obstacle);
  return false;
}

void RoundPipeline::run(std::span<Sequence* const> sequences, int adaptive_drafts, bool ahead,
                        RoundReport& report) {
  // Two rounds at once are enough for the device never to wait, and keep what a sequence's end
  // wastes small.
  const std::size_t before = in_flight_;
  auto own = static_cast<std::size_t>(launch_round(sequences, adaptive_drafts, report));
  if (ahead && before == 0 && in_flight_ == own &&
      2 * own <= static_cast<std::size_t>(device_->max_in_flight())) {
    launch_round(sequences, adaptive_drafts, report);
  }
  if (!ahead) own = in_flight_;
  // At least one, so that every call gets on.
  own = std::max<std::size_t>(own, 1);
  for (std::size_t i = 0; i < own && in_flight_ > 0; ++i) apply_oldest(report);
}

void RoundPipeline::settle(RoundReport& report) {
  while (in_flight_ > 0) apply_oldest(report);
}

void RoundPipeline::drop(const Sequence& sequence) {
  for (std::size_t i = 0; i < in_flight_; ++i) {
    Group& group = launches_[(oldest_ + i) % kMost].group;
    for (Sequence*& one : group.sequences) {
      if (one != &sequence) continue;
      one = nullptr;
      --rounds_of_[slot_of(sequence)];
    }
  }
}

int RoundPipeline::launch_round(std::span<Sequence* const> sequences, int adaptive_drafts,
                                RoundReport& report) {
  int launches = 0;
  const int widest = device_->max_rows() - 1;
  for (Sequence* sequence : sequences) {
    if (sequence->finished()) continue;
    // Each round in flight puts out a token at least.
    if (rounds_of_[slot_of(*sequence)] >= sequence->remaining()) continue;
    const int drafts = std::min(sequence->wanted_drafts(adaptive_drafts), widest);
    Group& group = groups_[static_cast<std::size_t>(drafts)];
    if (static_cast<int>(group.count + 1) * (1 + drafts) > device_->max_rows()) {
      launch(group, drafts, report);
      ++launches;
    }
    group.sequences[group.count++] = sequence;
  }
  for (std::size_t drafts = 0; drafts < groups_.size(); ++drafts) {
    if (groups_[drafts].count == 0) continue;
    launch(groups_[drafts], static_cast<int>(drafts), report);
    ++launches;
  }
  return launches;
}

void RoundPipeline::launch(Group& group, int drafts, RoundReport& report) {
  const auto most = std::min(kMost, static_cast<std::size_t>(device_->max_in_flight()));
  while (in_flight_ >= most) apply_oldest(report);
  // Some may have ended with that.
  std::array<int, kMost> slots = {};
  std::size_t count = 0;
  for (std::size_t i = 0; i < group.count; ++i) {
    Sequence* sequence = group.sequences[i];
    if (sequence->finished()) continue;
    if (!device_->knows(sequence->slot())) device_->enter(sequence->round_start());
    ++rounds_of_[slot_of(*sequence)];
    group.sequences[count] = sequence;
    slots[count++] = sequence->slot();
  }
  group.count = count;
  if (count > 0) {
    device_->launch(std::span(slots).first(count), drafts);
    launches_[(oldest_ + in_flight_++) % kMost] = {group, drafts};
  }
  group = {};
}

void RoundPipeline::apply_oldest(RoundReport& report) {
  const runtime::RoundOutcome& outcome = device_->wait();
  const Launch& launch = launches_[oldest_];
  oldest_ = (oldest_ + 1) % kMost;
  --in_flight_;
  report.draft_seconds += outcome.draft_seconds;
  report.extend_seconds += outcome.verify_seconds;
  for (std::size_t i = 0; i < launch.group.count; ++i) {
    Sequence* sequence = launch.group.sequences[i];
    if (sequence == nullptr) continue;
    --rounds_of_[slot_of(*sequence)];
    if (sequence->finished()) continue;
    try {
      apply(*sequence, outcome.results[i].block, report);
    } catch (...) {
      sequence->fail(std::current_exception());
    }
  }
}

void RoundPipeline::apply(Sequence& sequence, const runtime::Block& block, RoundReport& report) {
  ++report.decoding;
  report.decode_rows += 1 + block.drafts;
  if (block.drafts > 0) ++report.drafting;
  report.draft_steps = std::max(report.draft_steps, block.drafts);
  for (const int32_t token : std::span(block.tokens).first(static_cast<std::size_t>(block.count))) {
    sequence.append(token);
  }
  sequence.consume(block.count);
  sequence.produced(Sequence::Clock::now());
  if (block.drafts > 0) count_drafts(sequence, block.drafts, block.accepted, report);
  if (block.end == runtime::RoundEnd::kNotANumber) no_numbers();
  if (sequence.finished() == (block.end != runtime::RoundEnd::kGoesOn)) return;
  throw Error({.what = "device and host disagree about where a sequence ends",
               .where = "device round",
               .expected = sequence.finished() ? "an end" : "more tokens",
               .found = "the opposite",
               .hint = {}});
}

void count_drafts(Sequence& sequence, int drafts, int accepted, RoundReport& report) {
  for (SpeculationStats* stats : {&sequence.speculation, &report.speculation}) {
    ++stats->num_drafts;
    stats->num_draft_tokens += drafts;
    stats->num_accepted_tokens += accepted;
    for (int i = 0; i < accepted; ++i) {
      ++stats->num_accepted_tokens_per_pos[static_cast<std::size_t>(i)];
    }
  }
  if (!sequence.request().given_drafts.empty()) return;
  // A sequence that ends with an accepted draft says nothing about those after it.
  const int tried = sequence.finished() ? accepted : std::min(drafts, accepted + 1);
  for (int i = 0; i < tried; ++i) ++report.drafts_tried[static_cast<std::size_t>(i)];
  for (int i = 0; i < accepted; ++i) ++report.drafts_right[static_cast<std::size_t>(i)];
}

}  // namespace levin::engine
