// What the threads of a runtime do, phase by phase: the seam between a runtime and whoever wants to
// know where a step's time goes. A runtime without a recorder does nothing for it but compare a
// pointer once a phase; with one it writes to rings that were allocated before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/ticks.h"

namespace levin::runtime {

// What a barrier ends. A phase of a large batch may have several: its inputs are staged first.
enum class Phase : uint8_t {
  kEmbed,
  kMambaIn,    // norm, in_proj
  kMambaScan,  // convolution, recurrence
  kMambaOut,   // gated norm, out_proj
  kAttentionIn,
  kAttend,
  kAttentionOut,
  kMoeIn,     // norm, router, up-projection of the shared expert, way into the latent space
  kMoeRoute,  // choice of experts, where it is a phase of its own
  kMoeUp,
  kMoeDown,  // of routed and shared experts
  kMoeOut,   // way out of the latent space
  kMlpUp,
  kMlpDown,
  kHead,     // last norm, lm_head
  kDraftIn,  // the draft head's norms and eh_proj
};
inline constexpr int kPhases = static_cast<int>(Phase::kDraftIn) + 1;
std::string_view name_of(Phase phase);  // "mamba in", "experts up", ...

struct PhaseRecord {
  uint64_t begin = 0;    // ticks(): the end of the barrier before
  uint64_t arrived = 0;  // at the barrier, its own work done
  uint64_t end = 0;      // of the barrier
  // That this thread read or wrote: weights as the runtime holds them, recurrent state, KV cache;
  // what is read again within a phase (by the next token of a sequence) counts once.
  int64_t bytes = 0;
  int32_t experts = 0;  // distinct routed experts whose weights this phase read
  int32_t rows = 0;     // of the pass
  int16_t layer = -1;   // of the model or of the draft head
  Phase phase = Phase::kEmbed;
  bool draft = false;  // of the draft head
};

enum class StepKind : uint8_t { kExtend, kDraft };

// A call of the runtime.
struct StepRecord {
  uint64_t begin = 0;  // ticks()
  uint64_t end = 0;
  StepKind kind = StepKind::kExtend;
  int sequences = 0;
  int rows = 0;              // tokens of an extend, proposals of a draft
  uint64_t first_phase = 0;  // PhaseRecorder::phase()
  uint64_t phases = 0;
};

// Keeps the last records. Every thread writes to a ring of its own; all threads of a step have the
// same phases. To be read between steps.
class PhaseRecorder {
 public:
  // Room for so many phases of each thread and so many steps, rounded up to powers of two.
  PhaseRecorder(int threads, std::size_t phases, std::size_t steps);

  // By the runtime.
  void begin_step(StepKind kind, int sequences, int rows);
  void end_step();
  void begin(int thread) { ring(thread).mark = ticks(); }  // of a thread's first phase
  uint64_t mark(int thread) { return ring(thread).mark; }  // where the next phase begins
  void add(int thread, const PhaseRecord& record) {
    Ring& own = ring(thread);
    own.records[own.next++ & mask_] = record;
    own.mark = record.end;
  }

  int threads() const { return static_cast<int>(rings_.size()); }
  // Steps whose phases are all still there, the oldest first.
  std::vector<StepRecord> steps() const;
  // `index`: StepRecord::first_phase and the StepRecord::phases - 1 after it.
  const PhaseRecord& phase(int thread, uint64_t index) const {
    return rings_[static_cast<std::size_t>(thread)].records[index & mask_];
  }
  // Forgets everything.
  void clear();
  TickScale::Line scale() const { return scale_.line(); }

 private:
  struct alignas(64) Ring {
    std::vector<PhaseRecord> records;
    uint64_t next = 0;
    uint64_t mark = 0;
  };
  Ring& ring(int thread) { return rings_[static_cast<std::size_t>(thread)]; }

  std::vector<Ring> rings_;
  uint64_t mask_;
  std::vector<StepRecord> steps_;
  uint64_t step_mask_;
  uint64_t next_step_ = 0;
  uint64_t first_step_ = 0;  // since clear()
  TickScale scale_;
};

}  // namespace levin::runtime
