// The seam for devices that do whole generation rounds by themselves: draft, verify, accept,
// rewind, sample. The host says which sequences take part and reads what comes out; it launches
// rounds ahead of those it has read, and waits for nothing but their results.
//
// A device round puts out the tokens that the round of engine/round.h would.
//
//    DeviceRounds& rounds = *runtime.rounds();
//    rounds.enter({.slot = 0, .last_token = token, ...});  // after prefill: chosen, not extended
//    rounds.launch(slots, 3);                              // 3 drafts, then 4 rows to verify
//    rounds.launch(slots, 3);                              // ahead of the results
//    const RoundOutcome& first = rounds.wait();
//
// A sequence that ends takes no part in the rounds that were launched ahead: they have no tokens of
// it. Calls of the runtime about a slot that is in no launched round stay allowed in between;
// extend(), rewind(), reset() and restore() of a slot take it out of the device's hands (knows()),
// and results of rounds launched before a reset() are dropped. Runtime::length() is what has been
// waited for.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/round_rules.h"

namespace levin::runtime {

struct RoundStart {
  int slot = 0;
  int32_t last_token = 0;  // chosen, not extended; at least one token has been
  int64_t remaining = 0;   // tokens that may still be put out, at least one
  SamplingRule sampling = {};
  std::span<const int32_t> stops = {};  // token ids, at most kMaxRoundStops
  int64_t draft_vocab = 0;              // Draft::vocab
  // Forced acceptance for benchmarks (RoundSequence::rates), unless empty.
  std::span<const double> synthetic_rates = {};
};

struct RoundResult {
  int slot = 0;
  Block block;  // no tokens: it had ended, or its slot was reset
};

struct RoundOutcome {
  std::span<const RoundResult> results;  // in the order of launch()
  // Measured on the device.
  double draft_seconds = 0;
  double verify_seconds = 0;  // everything else
  double gap_seconds = 0;     // since the end of the round before
  // Distinct routed experts that the verified rows went to, summed over layers; 0: not counted.
  int experts = 0;
};

class DeviceRounds {
 public:
  virtual ~DeviceRounds() = default;

  // Rows of one launch at most: slots times (1 + drafts).
  virtual int max_rows() const = 0;
  // Rounds that may be launched and not waited for.
  virtual int max_in_flight() const = 0;
  // Whether it can draw samples, or take the best token only.
  virtual bool samples() const = 0;

  // Whether the device has the state of the slot's sequence.
  virtual bool knows(int slot) const = 0;
  virtual void enter(const RoundStart& start) = 0;
  // One round of these slots, all of them known, each once. With fewer rows than max_rows() and
  // max_in_flight() not reached. Does not wait, allocate or lock.
  virtual void launch(std::span<const int> slots, int drafts) = 0;
  virtual int in_flight() const = 0;
  // The oldest round in flight, when it is over. Valid until the next call. Throws Error when the
  // device failed.
  virtual const RoundOutcome& wait() = 0;
};

}  // namespace levin::runtime
