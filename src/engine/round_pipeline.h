// Keeps rounds of the sequences that a device runs by itself in flight (runtime/round.h), and
// applies what comes out of them.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "runtime/round.h"
#include "runtime/runtime.h"

namespace levin::engine {

struct RoundReport;

class RoundPipeline {
 public:
  explicit RoundPipeline(runtime::Runtime& runtime);
  ~RoundPipeline();
  RoundPipeline(const RoundPipeline&) = delete;
  RoundPipeline& operator=(const RoundPipeline&) = delete;

  // Whether a sequence behind its prompt runs here, now and from now on. What it cannot do is said
  // once in the log.
  bool takes(const Sequence& sequence) const;

  // One round of all `sequences`, which it takes: launched, and the oldest round in flight applied.
  // `ahead`: with the next round launched already when it returns. Allocates nothing.
  void run(std::span<Sequence* const> sequences, int adaptive_drafts, bool ahead,
           RoundReport& report);
  // Applies everything in flight.
  void settle(RoundReport& report);
  // What is in flight for the sequence is not going to be applied.
  void drop(const Sequence& sequence);

 private:
  static constexpr std::size_t kMost = 8;  // rows of a launch, launches in flight
  // Sequences that draft as many tokens.
  struct Group {
    std::size_t count = 0;
    std::array<Sequence*, kMost> sequences = {};
  };
  struct Launch {
    Group group;
    int drafts = 0;
  };

  // Launches a round of those that can have another; how many launches that took.
  int launch_round(std::span<Sequence* const> sequences, int adaptive_drafts, RoundReport& report);
  void launch(Group& group, int drafts, RoundReport& report);
  void apply_oldest(RoundReport& report);
  void apply(Sequence& sequence, const runtime::Block& block, RoundReport& report);
  static std::size_t slot_of(const Sequence& sequence) {
    return static_cast<std::size_t>(sequence.slot());
  }

  runtime::DeviceRounds* device_;
  std::array<Group, runtime::kMaxBlock> groups_ = {};  // by drafts, while a round is launched
  std::array<Launch, kMost> launches_ = {};            // in flight, a ring
  std::size_t oldest_ = 0;
  std::size_t in_flight_ = 0;
  std::vector<int> rounds_of_;  // in flight, by slot
};

// Adds what became of the drafts of a round to the sequence's and the report's counters.
void count_drafts(Sequence& sequence, int drafts, int accepted, RoundReport& report);

}  // namespace levin::engine
