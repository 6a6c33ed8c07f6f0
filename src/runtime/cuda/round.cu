#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "core/error.h"
#include "runtime/cuda/round.h"
#include "runtime/validate.h"

namespace levin::runtime::cuda {
namespace {

int power_of_two_from(int value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

[[noreturn]] void refuse(std::string what, std::string expected, std::string found) {
  throw Error({.what = std::move(what),
               .where = "device round",
               .expected = std::move(expected),
               .found = std::move(found),
               .hint = {}});
}

}  // namespace

CudaRounds::CudaRounds(const model::Config& config, const Options& options, const State& state,
                       Step& step, cudaStream_t stream, std::vector<SlotState>& slots,
                       int most_rows)
    : options_(options),
      state_(state),
      stream_(stream),
      slots_(slots),
      max_rows_(std::min(most_rows, options.max_extend_tokens)),
      max_drafts_(options.mtp ? std::min(options.max_rewind, max_rows_) - 1 : 0),
      samples_(step.can_sample(static_cast<int>(config.vocab_size))),
      vocab_(config.vocab_size),
      enters_(slots.size()) {
  Arena count;
  const auto place = [&](Arena& arena) {
    orders_ = arena.take<RoundOrder>(kRoundRing);
    reports_ = arena.take<RoundReport>(kRoundRing);
    entering_ = arena.take<RoundSequence>(slots.size());
  };
  place(count);
  pinned_ = Memory(Memory::Place::kPinned, count.used());
  std::fill_n(pinned_.data(), pinned_.bytes(), std::byte{0});
  Arena arena(pinned_.data());
  place(arena);
  capture(step);
}

RoundStep CudaRounds::buffers() const {
  RoundStep p;
  p.orders = orders_;
  p.entering = entering_;
  p.reports = reports_;
  return p;
}

void CudaRounds::capture(Step& step) {
  const int most_sequences = std::min(max_rows_, options_.max_num_seqs);
  for (int drafts = 0; drafts <= max_drafts_; ++drafts) {
    for (int sequences = 1; sequences <= most_sequences; ++sequences) {
      if (sequences * (1 + drafts) > max_rows_) break;
      const int rows = power_of_two_from(sequences * (1 + drafts));
      const int of_drafts = power_of_two_from(sequences);
      const bool same = std::any_of(graphs_.begin(), graphs_.end(), [&](const Shape& shape) {
        return shape.drafts == drafts && shape.rows == rows &&
               (drafts == 0 || shape.sequences == of_drafts);
      });
      if (same) continue;
      graphs_.push_back({of_drafts, rows, drafts, Graph(stream_, [&] {
                           step.round(stream_, of_drafts, rows, drafts, buffers());
                         })});
    }
  }
}

const Graph& CudaRounds::graph_for(int sequences, int drafts) const {
  const int rows = power_of_two_from(sequences * (1 + drafts));
  for (const Shape& shape : graphs_) {
    if (shape.drafts == drafts && shape.rows == rows &&
        (drafts == 0 || shape.sequences == power_of_two_from(sequences))) {
      return shape.graph;
    }
  }
  refuse("no graph was captured for this round",
         "at most " + std::to_string(max_drafts_) + " drafts and " + std::to_string(max_rows_) +
             " rows",
         std::to_string(sequences) + " sequences with " + std::to_string(drafts) + " drafts");
}

void CudaRounds::enter(const RoundStart& start) {
  check_slot(options_, start.slot);
  SlotState& slot = slots_[index(start.slot)];
  const bool fits = slot.length > 0 && start.remaining > 0 &&
                    slot.length + start.remaining <= options_.max_model_len &&
                    start.stops.size() <= std::size_t{kMaxRoundStops} &&
                    start.synthetic_rates.size() < std::size_t{kMaxBlock} &&
                    start.draft_vocab >= 0 && start.draft_vocab <= vocab_ &&
                    (samples_ || start.sampling.greedy);
  if (!fits) {
    refuse("this sequence cannot be run by device rounds",
           "tokens before it and room after it, at most " + std::to_string(kMaxRoundStops) +
               " stop tokens",
           std::to_string(slot.length) + " tokens, " + std::to_string(start.remaining) +
               " to come, " + std::to_string(start.stops.size()) + " stop tokens");
  }
  RoundSequence sequence;
  sequence.active = 1;
  sequence.last_token = start.last_token;
  sequence.length = static_cast<int32_t>(slot.length);
  sequence.committed = static_cast<int32_t>(slot.committed);
  sequence.parity = slot.parity;
  sequence.remaining = static_cast<int32_t>(start.remaining);
  sequence.stop_count = static_cast<int32_t>(start.stops.size());
  std::copy(start.stops.begin(), start.stops.end(), sequence.stops);
  sequence.draft_vocab = static_cast<int32_t>(start.draft_vocab);
  sequence.sampling = start.sampling;
  sequence.synthetic = start.synthetic_rates.empty() ? 0 : 1;
  std::copy(start.synthetic_rates.begin(), start.synthetic_rates.end(), sequence.rates);
  entering_[index(start.slot)] = sequence;
  enters_[index(start.slot)] = 1;
  slot.on_device = true;
}

void CudaRounds::launch(std::span<const int> slots, int drafts) {
  const auto count = static_cast<int>(slots.size());
  if (count == 0 || drafts < 0 || drafts > max_drafts_ || count * (1 + drafts) > max_rows_ ||
      in_flight() >= max_in_flight()) {
    refuse("this round cannot be launched",
           "at most " + std::to_string(max_rows_) + " rows, " + std::to_string(max_drafts_) +
               " drafts, " + std::to_string(max_in_flight()) + " rounds in flight",
           std::to_string(count) + " sequences with " + std::to_string(drafts) + " drafts, " +
               std::to_string(in_flight()) + " in flight");
  }
  launch_with(graph_for(count, drafts), slots);
}

void CudaRounds::launch_with(const Graph& graph, std::span<const int> slots) {
  const std::size_t place = launched_ % kRoundRing;
  RoundOrder& order = orders_[place];
  Launched& launched = in_flight_[place];
  order.count = launched.count = static_cast<int>(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const int slot = slots[i];
    if (!knows(slot)) {
      refuse("a slot's sequence is not on the device", "one that entered", std::to_string(slot));
    }
    order.slot[i] = slot;
    order.enters[i] = enters_[index(slot)];
    enters_[index(slot)] = 0;
    launched.slot[i] = slot;
    launched.generation[i] = slots_[index(slot)].generation;
  }
  graph.launch(stream_);
  ++launched_;
}

// Spins for as long as a short round takes, then sleeps: rounds ahead keep the device busy.
void CudaRounds::await(const RoundReport& report, uint64_t number) const {
  using Clock = std::chrono::steady_clock;
  using namespace std::chrono_literals;
  constexpr int kSpins = 256;
  // The device writes it, so that it is no constant.
  const std::atomic_ref<uint64_t> written(const_cast<uint64_t&>(report.number));
  const auto start = Clock::now();
  auto next_look = start + 200ms;
  while (true) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (written.load(std::memory_order_acquire) == number + 1) return;
    }
    const auto now = Clock::now();
    if (now - start > 100us) std::this_thread::sleep_for(10us);
    if (now < next_look) continue;
    next_look = now + 200ms;
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status == cudaErrorNotReady) continue;
    check(status);
    if (written.load(std::memory_order_acquire) == number + 1) return;
    refuse("a round ended without a report", "round " + std::to_string(number), "none");
  }
}

// What accept_block() did to the sequence on the device.
void CudaRounds::keep_up(const Block& block, SlotState& slot) const {
  if (block.count == 0 && block.end != RoundEnd::kNotANumber) return;  // took no part
  slot.committed = slot.rewindable_to = slot.length;
  slot.length += block.count;
  slot.parity ^= 1;
}

const RoundOutcome& CudaRounds::wait() {
  if (in_flight() == 0) refuse("there is no round to wait for", "a launched one", "none");
  const std::size_t place = waited_for_ % kRoundRing;
  const RoundReport& report = reports_[place];
  const Launched& launched = in_flight_[place];
  await(report, waited_for_);
  ++waited_for_;
  for (std::size_t i = 0; i < index(launched.count); ++i) {
    SlotState& slot = slots_[index(launched.slot[i])];
    const bool current = slot.generation == launched.generation[i];
    results_[i] = {.slot = launched.slot[i], .block = current ? report.block[i] : Block{}};
    keep_up(results_[i].block, slot);
  }
  outcome_.results = std::span(results_).first(index(launched.count));
  outcome_.draft_seconds = static_cast<double>(report.drafted - report.began) * 1e-9;
  outcome_.verify_seconds = static_cast<double>(report.ended - report.drafted) * 1e-9;
  const bool after_another = last_end_ != 0 && report.began > last_end_;
  outcome_.gap_seconds = after_another ? static_cast<double>(report.began - last_end_) * 1e-9 : 0.0;
  outcome_.experts = report.experts;
  last_end_ = report.ended;
  return outcome_;
}

}  // namespace levin::runtime::cuda
