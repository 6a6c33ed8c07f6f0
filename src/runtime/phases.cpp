#include "runtime/phases.h"

#include <algorithm>
#include <bit>

namespace levin::runtime {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::kEmbed:
      return "embed";
    case Phase::kMambaIn:
      return "mamba in";
    case Phase::kMambaScan:
      return "mamba scan";
    case Phase::kMambaOut:
      return "mamba out";
    case Phase::kAttentionIn:
      return "attention in";
    case Phase::kAttend:
      return "attend";
    case Phase::kAttentionOut:
      return "attention out";
    case Phase::kMoeIn:
      return "router+shared up";
    case Phase::kMoeRoute:
      return "route";
    case Phase::kMoeUp:
      return "experts up";
    case Phase::kMoeDown:
      return "experts+shared down";
    case Phase::kMoeOut:
      return "latent out";
    case Phase::kMlpUp:
      return "mlp up";
    case Phase::kMlpDown:
      return "mlp down";
    case Phase::kHead:
      return "lm_head";
    case Phase::kDraftIn:
      return "draft in";
  }
  return "?";
}

PhaseRecorder::PhaseRecorder(int threads, std::size_t phases, std::size_t steps)
    : rings_(static_cast<std::size_t>(std::max(threads, 1))),
      mask_(std::bit_ceil(std::max<std::size_t>(phases, 1)) - 1),
      steps_(std::bit_ceil(std::max<std::size_t>(steps, 1))),
      step_mask_(steps_.size() - 1) {
  for (Ring& ring : rings_) ring.records.resize(mask_ + 1);
}

void PhaseRecorder::begin_step(StepKind kind, int sequences, int rows) {
  steps_[next_step_ & step_mask_] = {.begin = ticks(),
                                     .end = 0,
                                     .kind = kind,
                                     .sequences = sequences,
                                     .rows = rows,
                                     .first_phase = rings_.front().next,
                                     .phases = 0};
}

void PhaseRecorder::end_step() {
  StepRecord& step = steps_[next_step_++ & step_mask_];
  step.phases = rings_.front().next - step.first_phase;
  step.end = ticks();
}

std::vector<StepRecord> PhaseRecorder::steps() const {
  std::vector<StepRecord> whole;
  const uint64_t kept = std::min<uint64_t>(next_step_ - first_step_, steps_.size());
  const uint64_t next_phase = rings_.front().next;
  for (uint64_t i = next_step_ - kept; i < next_step_; ++i) {
    const StepRecord& step = steps_[i & step_mask_];
    if (next_phase - step.first_phase <= mask_ + 1) whole.push_back(step);
  }
  return whole;
}

void PhaseRecorder::clear() {
  first_step_ = next_step_;
}

}  // namespace levin::runtime
