// Device rounds (runtime/round.h) of the CUDA runtime: a graph for every number of sequences and
// drafts, captured at the start; orders and reports in pinned memory.
#pragma once

#include <array>
#include <vector>

#include "runtime/cuda/device.h"
#include "runtime/cuda/step.h"
#include "runtime/round.h"

namespace levin::runtime::cuda {

// A sequence's place in the runtime; what the fields mean on the device: pass.h.
struct SlotState {
  int64_t length = 0;
  int64_t committed = 0;      // tokens in the stored Mamba state; the rest is logged
  int64_t rewindable_to = 0;  // shortest length that rewind() can go back to
  int parity = 0;
  bool on_device = false;   // device rounds have its sequence
  uint32_t generation = 0;  // counts resets
};

class CudaRounds final : public DeviceRounds {
 public:
  // `slots`: of the runtime, kept up to date by wait().
  CudaRounds(const model::Config& config, const Options& options, const State& state, Step& step,
             cudaStream_t stream, std::vector<SlotState>& slots, int most_rows);

  int max_rows() const override { return max_rows_; }
  int max_in_flight() const override { return kRoundRing / 2; }
  bool samples() const override { return samples_; }
  bool knows(int slot) const override { return slots_.at(index(slot)).on_device; }
  void enter(const RoundStart& start) override;
  void launch(std::span<const int> slots, int drafts) override;
  int in_flight() const override { return static_cast<int>(launched_ - waited_for_); }
  const RoundOutcome& wait() override;

  std::size_t pinned_bytes() const { return pinned_.bytes(); }
  // For profiling: where a round that is recorded elsewhere finds its orders, and the launch of
  // one.
  RoundStep buffers() const;
  void launch_with(const Graph& graph, std::span<const int> slots);

 private:
  struct Shape {
    int sequences = 0;  // 1, 2, 4 or 8
    int rows = 0;       // likewise
    int drafts = 0;
    Graph graph;
  };
  struct Launched {
    int count = 0;
    std::array<int, kPassRows> slot = {};
    std::array<uint32_t, kPassRows> generation = {};
  };

  static std::size_t index(int value) { return static_cast<std::size_t>(value); }
  void capture(Step& step);
  const Graph& graph_for(int sequences, int drafts) const;
  void await(const RoundReport& report, uint64_t number) const;
  void keep_up(const Block& block, SlotState& slot) const;

  const Options& options_;
  const State& state_;
  cudaStream_t stream_;
  std::vector<SlotState>& slots_;
  int max_rows_;
  int max_drafts_;
  bool samples_;
  int64_t vocab_;
  Memory pinned_;
  RoundOrder* orders_ = nullptr;       // [kRoundRing]
  RoundReport* reports_ = nullptr;     // [kRoundRing]
  RoundSequence* entering_ = nullptr;  // [slots]
  std::vector<uint8_t> enters_;        // by slot: not told to the device yet
  std::vector<Shape> graphs_;
  uint64_t launched_ = 0;
  uint64_t waited_for_ = 0;
  uint64_t last_end_ = 0;  // nanoseconds of the device
  std::array<Launched, kRoundRing> in_flight_ = {};
  std::array<RoundResult, kPassRows> results_ = {};
  RoundOutcome outcome_;
};

}  // namespace levin::runtime::cuda
