// The CUDA runtime as a class: passes of up to kMaxRows tokens, each one launch of a captured
// graph, and chunks of longer extends.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "runtime/cuda/prefill.h"
#include "runtime/cuda/profile.h"
#include "runtime/cuda/round.h"
#include "runtime/cuda/snapshot.h"
#include "runtime/cuda/step.h"
#include "runtime/runtime.h"

namespace levin::runtime::cuda {

class CudaRuntime final : public Runtime {
 public:
  CudaRuntime(std::shared_ptr<const model::Model> model, const Options& options, int device,
              const CudaLimits& limits = {});
  ~CudaRuntime() override;

  const model::Model& model() const override { return *model_; }
  const Options& options() const override { return options_; }
  std::string description() const override;
  std::vector<PlanEntry> plan() const override { return weights_.plan; }
  int64_t memory_bytes() const override;
  void set_observer(Observer observer) override;

  void reset(int slot) override;
  int64_t length(int slot) const override { return slots_.at(index(slot)).length; }
  ExtendCuts extend_cuts() const override;
  void extend(std::span<const Extend> batch) override;
  std::span<const float> logits(int entry, int row) const override;
  void rewind(int slot, int64_t length) override;
  void draft(std::span<const Draft> batch) override;
  std::span<const int32_t> drafts(int entry) const override;
  std::span<const float> draft_logits(int entry, int step) const override;

  bool has_snapshots() const override { return true; }
  SnapshotBytes snapshot_bytes(int64_t parent, int64_t length) const override;
  std::optional<int64_t> free_snapshot_bytes() const override;
  Snapshot save(int slot, int64_t parent) override;
  void restore(int slot, std::span<const Snapshot> chain) override;

  // None while an observer watches: it wants to see every pass.
  DeviceRounds* rounds() override;
  std::vector<double> read_gb_per_s(std::size_t bytes, int passes) override;

  // See profile.h.
  void prepare_timing();
  std::vector<double> time_passes(int rows, int context, int repeats);
  std::vector<double> time_drafts(int context, int repeats);
  std::string phase_table(int rows, int context);
  RoundTimeline round_timeline(int drafts);
  std::vector<double> time_prompt(int tokens, int repeats);
  std::string prompt_table(int tokens);

 private:
  struct GraphSet {
    std::array<Graph, 2> extend;  // without and with logits
    Graph draft;
  };

  enum class PassKind : uint8_t { kWithoutLogits, kWithLogits, kDraft };

  static std::size_t index(int value) { return static_cast<std::size_t>(value); }
  static std::size_t size_class(int rows);

  void allocate();
  void capture();
  // Appends `tokens` of a slot to a pass, from `position` of the slot's length on.
  void add_rows(Pass& pass, int slot, std::span<const int32_t> tokens, bool commit);
  void run(const Pass& pass);
  // Extends of more tokens than a pass has rows are run in chunks, where there is prefill. Observed
  // ones are not: it is passes that show what they compute.
  bool runs_in_chunks(const Extend& entry) const;
  // The entries that run in passes; the first free row of the logits.
  std::size_t run_passes(std::span<const Extend> batch);
  void run_chunks(std::span<const Extend> batch, std::size_t logits_row);
  void commit_logs(std::span<const Extend> batch);
  // Appends tokens of a slot to a chunk: as many as fit and end at a multiple of kScanPiece, or
  // all.
  std::size_t add_segment(Chunk& chunk, const ChunkArrays& arrays, int slot,
                          std::span<const int32_t> tokens);
  std::vector<int32_t> timing_prompt(int tokens) const;
  void observe_pass(const Pass& pass, PassKind kind);
  Pass& next_pass();
  int hidden_row(int slot, int64_t position) const;
  std::span<const float> fetch(const float* device, float* host, std::vector<uint8_t>& fetched,
                               std::size_t row) const;
  Pass timing_pass(int rows, int context) const;

  std::shared_ptr<const model::Model> model_;
  Options options_;
  int device_;
  std::string device_name_;
  int most_rows_ = kMaxRows;  // of a pass
  int blocks_ = 0;
  LoadedKernels kernels_;
  CudaStream stream_;
  Memory weight_memory_;
  Memory state_memory_;
  DeviceModel weights_;
  State state_;
  std::unique_ptr<Step> step_;
  PrefillSpace prefill_space_;
  std::unique_ptr<Prefill> prefill_;  // null: no_prefill_because_
  std::string no_prefill_because_;
  Memory pinned_chunks_;
  std::array<GraphSet, 4> graphs_;  // for 1, 2, 4 and 8 rows
  std::vector<SlotState> slots_;
  std::unique_ptr<CudaRounds> rounds_;
  std::unique_ptr<Snapshots> snapshots_;

  Memory pinned_passes_;
  std::size_t passes_used_ = 0;
  Memory host_logits_;
  Memory host_draft_logits_;
  Memory host_drafts_;
  mutable std::vector<uint8_t> logits_fetched_;  // by row
  mutable std::vector<uint8_t> draft_logits_fetched_;
  std::vector<std::size_t> first_logits_row_;  // by batch entry
  std::vector<int> proposed_;                  // by batch entry of the last draft
  std::vector<int64_t> proposed_among_;        // Draft::vocab

  Observer observer_;
  Memory observed_memory_;
  ObservedBuffers observed_;
  std::vector<std::vector<float>> observed_hidden_;  // by layer, all rows of the extend
};

}  // namespace levin::runtime::cuda
