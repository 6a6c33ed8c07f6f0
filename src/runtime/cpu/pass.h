// One pass of rows through the model, as one thread of the team sees it. All threads run the same
// code; a barrier separates phases. In a phase each thread computes its own output rows of every
// matrix, for all tokens.
//
// What a matrix multiplies is staged first: normalized, quantized and packed. For a small batch
// every thread does that for itself, which is cheaper than a barrier; for a large one they share
// the rows.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "core/thread_team.h"
#include "model/config.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/weights.h"
#include "runtime/cpu/workspace.h"
#include "runtime/phases.h"
#include "runtime/runtime.h"

namespace levin::runtime::cpu {

// Consecutive tokens of one sequence among the rows of a pass.
struct Segment {
  int slot = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t position = 0;  // of the first row
};

// Forwards to the user's Observer from inside a pass, where nothing may throw: the first exception
// is kept and thrown after it.
class Watcher {
 public:
  void set(Observer observer) { observer_ = std::move(observer); }
  bool active() const { return observer_.hidden || observer_.linear_input; }
  void hidden(int layer, const Rows& rows, int64_t count, int64_t width);
  // Row i of the input is rows[index == nullptr ? i : index[i]].
  void linear_input(const Matrix& matrix, const Rows& rows, const int32_t* index, int64_t count);
  void rethrow();

 private:
  std::span<const float> compact(const Rows& rows, const int32_t* index, int64_t count,
                                 int64_t width);

  Observer observer_;
  std::vector<float> compact_;
  std::exception_ptr exception_;
};

// What all threads of all passes share.
struct Shared {
  const model::Config& config;
  const Options& options;
  const Kernels& kernels;
  ThreadTeam& team;
  Workspace& work;
  Watcher& watcher;
  PhaseRecorder* recorder = nullptr;  // none unless somebody asked for it
};

class Pass {
 public:
  // `rows`: of the pass, deciding whether its batch is small.
  Pass(const Shared& shared, int thread, int64_t rows)
      : shared_(shared), thread_(thread), small_(rows <= kTile) {
    record_.rows = static_cast<int32_t>(rows);
    if (shared_.recorder != nullptr) shared_.recorder->begin(thread);
  }

  const model::Config& config() const { return shared_.config; }
  const Options& options() const { return shared_.options; }
  const Kernels& kernels() const { return shared_.kernels; }
  Workspace& work() const { return shared_.work; }
  Private& own() const { return shared_.work.threads[static_cast<std::size_t>(thread_)]; }
  Watcher& watcher() const { return shared_.watcher; }
  int thread() const { return thread_; }
  int threads() const { return shared_.team.size(); }
  bool small() const { return small_; }

  // Ends a phase.
  void barrier() {
    if (shared_.recorder == nullptr) [[likely]] {
      shared_.team.barrier();
    } else {
      recorded_barrier();
    }
  }
  // For the record: what the next barriers end, and what was read or written before them.
  void enter_layer(int layer, bool draft = false) {
    record_.layer = static_cast<int16_t>(layer);
    record_.draft = draft;
  }
  void phase(Phase phase) { record_.phase = phase; }
  void count_bytes(int64_t bytes) { record_.bytes += bytes; }
  void count_expert() { ++record_.experts; }
  // After staging: the staged rows of the other threads are there too.
  void staged() {
    if (!small_) barrier();
  }

  // The rows of `count` that this thread stages; whole tiles.
  Range rows_to_stage(int64_t count) const {
    return small_ ? Range{0, count} : share(count, thread_, threads(), kTile);
  }
  // Where normalized rows go: to everybody's place in a large batch, to a place of its own.
  Rows normed() const { return small_ ? own().hidden : work().normed; }

  // out[i] = rmsnorm(x[i]) * weight for the rows that this thread stages.
  void normalize(const Rows& x, int64_t count, const float* weight, const Rows& out);

  // Packs rows (of those this thread stages) as `matrix` wants its input. `stage` says which of the
  // buffers to use; `first` at which row in it to begin.
  PackedInput stage(int stage, const Matrix& matrix, const Rows& rows, int64_t count);
  // The same rows for another matrix, packed again only if it wants them differently.
  PackedInput stage_also(int stage, const Matrix& matrix, const Rows& rows, int64_t count,
                         const Matrix& packed_for, const PackedInput& packed);

  // This thread's share of y = W x.
  void multiply(const Matrix& matrix, const PackedInput& input, const LinearOutput& output);
  Range panels_of(const Matrix& matrix) const {
    return share(matrix.panels.panels, thread_, threads());
  }

  void watch_hidden(int layer, const Rows& rows, int64_t count) {
    if (thread_ == 0 && watcher().active()) {
      watcher().hidden(layer, rows, count, config().hidden_size);
    }
  }
  void watch_input(const Matrix& matrix, const Rows& rows, int64_t count,
                   const int32_t* index = nullptr) {
    if (thread_ == 0 && watcher().active()) watcher().linear_input(matrix, rows, index, count);
  }

  // Packs rows [begin, end) of `rows` (or of `index`) into tiles that begin at row 0 of `buffer`.
  void pack(const Matrix& matrix, const Rows& rows, const int32_t* index, int64_t begin,
            int64_t end, const StageBuffer& buffer);
  const StageBuffer& stage_buffer(int stage) const {
    return small_ ? own().stages[stage] : work().stages[stage];
  }

 private:
  void recorded_barrier();

  const Shared& shared_;
  PhaseRecord record_;
  int thread_;
  bool small_;
};

inline LinearOutput store_to(const Rows& rows, Epilogue epilogue = Epilogue::kStore) {
  LinearOutput output;
  output.base = rows.data;
  output.stride = rows.stride;
  output.epilogue = epilogue;
  return output;
}

}  // namespace levin::runtime::cpu
